"""Number questions, to hold some out and to find those that are on both sides.

Both go by the question, not by the id: a question that is there twice lands on one side.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from astune.errors import TaskError
from astune.types import Task

KEY = "astune.task_reader.validation_fraction"


def world_of(task: Task) -> str:
    """The id by which the environment knows the world of a task: its column `env_task_id`, which several tasks of one
    world have, else its own."""
    return str(task.metadata.get("env_task_id", task.task_id))


def question_number(task: Task, seed: int) -> int:
    """64 bits that equal questions share: query and messages, white space and case folded. Of a task with an
    environment its type and world belong to the question, as many ask the same in different worlds.

    They depend on the question and the seed alone, so they are the same on every machine.
    """
    if task.env_type is None and not task.messages:
        question = _fold(task.query)
    else:
        world = None if task.env_type is None else (task.env_type, world_of(task))
        question = json.dumps([_fold(task.query), _fold(task.messages), world], sort_keys=True, default=str)
    digest = hashlib.sha256(f"{seed}\n{question}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big")


def _fold(value: Any) -> Any:
    if isinstance(value, str):
        return " ".join(value.split()).casefold()
    if isinstance(value, dict):
        return {name: _fold(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_fold(entry) for entry in value]
    return value


def find_held_out_limit(numbers: Sequence[int], fraction: float) -> int:
    """Find the number below which questions are held out, so that it is `fraction` of them, rounded, at least one and
    never all. Those of one question stay together, so there may be as many more or fewer as it has tasks.

    Raises `TaskError` where all tasks ask the same.

    >>> find_held_out_limit([40, 10, 30, 20], 0.5)
    21
    """
    ordered = sorted(numbers)
    if not ordered or ordered[0] == ordered[-1]:
        raise TaskError(
            f"{KEY}: nothing can be held out of {len(ordered)} training task{'s' * (len(ordered) != 1)} that ask the "
            "same question; give validation a source of its own"
        )
    count = min(max(round(len(ordered) * fraction), 1), len(ordered) - 1)
    last = ordered[count - 1]
    return last if last == ordered[-1] else last + 1
