"""The process that makes and scores tasks of reasoning-gym; `reasoning_gym_client` runs this file, nothing imports it.

One request per line of standard input, one reply per line of standard output, in the same order, JSON both:

    ["draw", "gcd", {}, 0, 0, 2]              ->   {"drawn": [["Find the ...", "8", "{'numbers': [88, 16]}"], ...]}
    ["draw", "gdc", {}, 0, 0, 2]              ->   {"wrong": ["gdc", ["gcd", ...], "no such data set"]}
    ["score", "gcd", {"options": {}, "answer": "8", "metadata": "{...}"}, "7"]   ->   {"score": 0.0}

A process of its own because some verifiers evaluate the answer as Python code or let sympy do so, which may never end,
because some data sets depend on the hash seed of the interpreter, and because some print. Nothing that an answer
contains can write files, start processes or open connections here. The process ends itself when its input closes, and
the kernel ends it when a request takes longer than the seconds on its command line.
"""

from __future__ import annotations

import ast
import gc
import importlib
import json
import logging
import math
import numbers
import os
import resource
import signal
import sys
import warnings
from dataclasses import fields
from functools import lru_cache
from typing import Any

if os.environ.get("PYTHONHASHSEED") != "0":  # some data sets draw from Python sets
    os.environ["PYTHONHASHSEED"] = "0"
    os.execv(sys.executable, sys.orig_argv)

from reasoning_gym.factory import DATASETS, create_dataset

CHUNK = 1000
"""Draws from one data set object: some make all of theirs at once, and some refuse to be large."""
MEMORY_LIMIT = 4 << 30
"""Bytes of address space, where the system can limit it."""
ANSWERS_AS_CODE = (
    "reasoning_gym.algorithmic.binary_matrix",
    "reasoning_gym.algorithmic.spiral_matrix",
    "reasoning_gym.algorithmic.string_insertion",
    "reasoning_gym.games.n_queens",
)
"""Modules whose verifiers call `eval` on the answer, to read a list. `[entry["answer"]]` would score."""
FORBIDDEN = (
    "ctypes.",
    "os.chmod",
    "os.chown",
    "os.exec",
    "os.fork",
    "os.kill",
    "os.link",
    "os.mkdir",
    "os.posix_spawn",
    "os.putenv",
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.symlink",
    "os.system",
    "os.truncate",
    "pty.",
    "shutil.",
    "socket.",
    "subprocess.",
)
"""What no answer may do, as Python's audit events are called (PEP 578)."""
WRITING = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC


def forbid(event: str, arguments: tuple[Any, ...]) -> None:
    if event.startswith(FORBIDDEN) or (event == "open" and int(arguments[2]) & WRITING):
        raise PermissionError(f"{event} is not allowed here")


def reply(request: list[Any]) -> dict[str, Any]:
    kind, name, *rest = request
    options = rest[0] if kind == "draw" else rest[0]["options"]
    wrong = wrong_name(name, options)
    if wrong is None:
        try:
            make_dataset(name, json.dumps(options), 0)
        except Exception as error:
            wrong = ["", [], f"the data set {name!r} refuses {options}: {error}"]
    if wrong is not None:
        return {"wrong": wrong} if kind == "draw" else {"error": wrong[2]}
    try:
        return {"drawn": draw(name, *rest)} if kind == "draw" else score(name, *rest)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def wrong_name(name: str, options: dict[str, Any]) -> list[Any] | None:
    """Name what is not known, what is, and what that means."""
    if name not in DATASETS:
        return [name, sorted(DATASETS), f"reasoning-gym has no data set {name!r}"]
    known = sorted({field.name for field in fields(DATASETS[name][1])} - {"seed", "size"})
    unknown = next((option for option in options if option not in known), None)
    return None if unknown is None else [unknown, known, f"the data set {name!r} has no option {unknown!r}"]


@lru_cache(maxsize=64)
def make_dataset(name: str, options: str, seed: int) -> Any:
    return create_dataset(name, seed=seed, size=CHUNK, **json.loads(options))


def draw(name: str, options: dict[str, Any], seed: int, start: int, count: int) -> list[list[Any]]:
    """Question, reference answer, and what the verifier needs, as a Python literal: JSON has no tuples, and two data
    sets compare with tuples."""
    drawn = []
    for index in range(start, start + count):
        within = index % CHUNK
        entry = make_dataset(name, json.dumps(options), seed + index - within)[within]
        drawn.append([entry["question"], entry["answer"], repr(literal(entry["metadata"]))])
    return drawn


def literal(value: Any) -> Any:
    """`value` in types whose `repr` can be read again."""
    if isinstance(value, dict):
        return {literal(key): literal(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(literal(each) for each in value)
    if isinstance(value, set | frozenset):
        return sorted(literal(each) for each in value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):  # numpy's are of these kinds
        return str(value)
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    raise TypeError(f"a value of type {type(value).__name__} in the metadata cannot be kept")


def score(name: str, entry: dict[str, Any], answer: str) -> dict[str, Any]:
    """An answer at which the verifier raises is wrong, if it does score the reference, or no answer where there is
    no reference."""
    dataset = make_dataset(name, json.dumps(entry["options"]), 0)
    reference = entry["answer"]
    entry = {"answer": reference, "metadata": ast.literal_eval(entry["metadata"])}
    try:
        value = float(dataset.score_answer(answer, entry))
    except Exception as error:
        of_reference = dataset.score_answer(reference or "", entry)
        if reference is not None and of_reference < 1:
            raise ValueError(f"the reference answer has the score {of_reference}") from error
        return {"score": 0.0, "raised": f"{type(error).__name__}: {error}"}
    if not math.isfinite(value):
        raise ValueError(f"the score is {value}")
    return {"score": value}


def main(seconds: float) -> None:
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever a data set prints is no reply
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, resource.getrlimit(resource.RLIMIT_AS)[1]))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    for module in ANSWERS_AS_CODE:
        setattr(importlib.import_module(module), "eval", ast.literal_eval)  # noqa: B010  hides the builtin in it
    sys.dont_write_bytecode = True
    sys.addaudithook(forbid)
    gc.freeze()
    print(json.dumps({"ready": True}), file=replies, flush=True)
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        signal.setitimer(signal.ITIMER_PROF, (seconds - 1) / 5)
        answer = reply(json.loads(line))
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(answer), file=replies, flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]))
