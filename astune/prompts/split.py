"""Divide the tasks in those that are searched on and those that the search never sees."""

from __future__ import annotations

from collections.abc import Sequence

from astune.errors import TaskError
from astune.task_reader.held_out import find_held_out_limit, question_number
from astune.types import Task

FEWEST_HELD_OUT = 6
"""With fewer tasks no paired test can tell a gain from luck: five of five are p = 0.06."""
FEWEST_SEARCHED = 3


def divide(tasks: Sequence[Task], share: float, seed: int) -> tuple[list[Task], list[Task]]:
    """The tasks of the search and the held-out ones, in their order. Equal questions land on one side.

    Raises TaskError where there are too few.
    """
    if not tasks:
        raise TaskError("there are no training tasks to search on: set astune.task_reader")
    numbers = [question_number(task, seed) for task in tasks]
    limit = find_held_out_limit(numbers, share)
    searched = [task for task, number in zip(tasks, numbers, strict=True) if number >= limit]
    held_out = [task for task, number in zip(tasks, numbers, strict=True) if number < limit]
    if len(held_out) < FEWEST_HELD_OUT or len(searched) < FEWEST_SEARCHED:
        needed = max(round(FEWEST_HELD_OUT / share + 0.5), round(FEWEST_SEARCHED / (1 - share) + 0.5))
        raise TaskError(
            f"{len(tasks)} training tasks: astune.prompts.holdout {share:g} leaves {len(searched)} to search on and "
            f"{len(held_out)} to test on; expected {FEWEST_SEARCHED} and {FEWEST_HELD_OUT} or more, as fewer cannot "
            f"tell a gain from luck. Give {needed} tasks or more, or another astune.prompts.holdout"
        )
    return searched, held_out
