r"""The process that compares formulas with math-verify; `math_pool` runs this file, nothing imports it but tests.

One request per line of standard input, one reply per line of standard output, JSON both:

    {"reference": "\\sqrt{8}", "answer": "2\\sqrt{2}", "seconds": 10}   ->   {"equal": true}
    {"reference": "}{", "answer": "2", "seconds": 10}                   ->   {"error": "..."}

A process of its own because math-verify's timeout is a signal that only works in a main thread, because sympy can
compute for ever, and because only a process can be ended from outside. It ends itself when its input closes, and the
kernel ends it when a request takes longer than `seconds`: whatever happens to its parent, it does not stay.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from functools import lru_cache
from typing import Any

from latex2sympy2_extended import NormalizationConfig
from math_verify import LatexExtractionConfig, parse, verify

NORMALIZATION = NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none", equations=False
)
"""math-verify's default but for units, which `math_answer` takes off more carefully: 5t and 5ab are no 5."""

MEMORY_LIMIT = 4 << 30
"""Bytes of address space, where the system can limit it."""


def equal(reference: str, answer: str) -> bool:
    """Whether two pieces of LaTeX mean the same. An answer that is no mathematics is not equal to anything.

    Raises ValueError for a reference that cannot be read, and what math-verify raises.
    """
    expected = _parse(reference, strict=True)
    if not expected:
        raise ValueError(f"the reference answer {reference!r} cannot be read as mathematics")
    given = _parse(answer, strict=False)
    return bool(verify(expected, given, timeout_seconds=None, raise_on_error=True))


@lru_cache(maxsize=10_000)
def _parse(text: str, *, strict: bool) -> list[Any]:
    found: list[Any] = parse(
        f"${text}$",
        extraction_config=[LatexExtractionConfig(boxed_match_priority=-1, normalization_config=NORMALIZATION)],
        fallback_mode="no_fallback",
        parsing_timeout=None,
        raise_on_error=strict,
    )
    return found


def _reply(request: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"equal": equal(request["reference"], request["answer"])}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def main() -> None:
    logging.disable(logging.CRITICAL)
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever a library prints is no reply
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, resource.getrlimit(resource.RLIMIT_AS)[1]))
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
    equal("1", "1")  # loads what math-verify loads late, so that no request pays for it
    print(json.dumps({"ready": True}), file=replies, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if sys.platform != "win32":
            signal.setitimer(signal.ITIMER_REAL, request["seconds"])
        reply = _reply(request)
        if sys.platform != "win32":
            signal.setitimer(signal.ITIMER_REAL, 0)
        print(json.dumps(reply), file=replies, flush=True)


if __name__ == "__main__":
    main()
