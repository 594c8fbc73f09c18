"""Probes of a version: eight rows with the log-probabilities that the trainer's weights gave their tokens.

Whoever serves the version must find the same, or it serves other weights, another tokenizer or a broken kernel. The
texts are ours, as those of users may have to be deleted.

    {"rows": [{"ids": [5, 9, 2], "logprobs": [-1.5, -0.25]}, ...]}      # of every token but the first, in nats
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.training.engine import Learner
from astune.types import Sample, Span, Timeline

TEXTS = (
    "The train leaves at half past nine from platform 4.",
    "To boil an egg, wait until the water boils, then set a timer for six minutes.",
    "def add(a, b):\n    return a + b\n",
    '{"name": "search", "arguments": {"query": "opening hours", "limit": 3}}',
    "12 + 30 = 42, and 7 * 8 = 56.",
    "Dear Ms Ito, thank you for your order. It will arrive on Tuesday.",
    "Wie komme ich zum Bahnhof? 请问去车站怎么走",
    "I do not know that. Could you tell me more?",
)
TOLERANCES = {"float32": 1e-4, "bfloat16": 5e-2}
"""Nats that a token's log-probability may be off by, by the precision of sampling."""


def probe_samples(rows: Sequence[Sequence[int]]) -> list[Sample]:
    """Make rows of token ids into samples whose every token but the first is scored."""
    samples = []
    for number, ids in enumerate(rows):
        span = Span(0, 1, len(ids), 0, 1.0, True, (0.0,) * (len(ids) - 1))
        samples.append(Sample(Timeline("probe", ids, (span,)), (1.0,), (1.0,), "probe", f"probe-{number}"))
    return samples


async def make_probes(learner: Learner, chat_format: ChatFormat) -> dict[str, Any]:
    """Make the probes of the weights that the learner has now."""
    rows = [list(chat_format.encode(text)) for text in TEXTS]
    found = await learner.logprobs(probe_samples(rows))
    return {"rows": [{"ids": ids, "logprobs": list(said)} for ids, said in zip(rows, found, strict=True)]}


def largest_difference(
    probes: Mapping[str, Any], score: Callable[[Sequence[Sample]], Sequence[Sequence[float]]]
) -> float:
    """The most, in nats, that any log-probability differs from that of the probes; infinite where one is no number."""
    rows = probes["rows"]
    found = score(probe_samples([row["ids"] for row in rows]))
    pairs = [(a, b) for row, said in zip(rows, found, strict=True) for a, b in zip(row["logprobs"], said, strict=True)]
    return max((abs(a - b) if math.isfinite(a - b) else math.inf for a, b in pairs), default=0.0)
