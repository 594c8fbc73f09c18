"""Divide the tasks in those that are searched on and those that the search never sees."""

from __future__ import annotations

from astune.errors import TaskError
from astune.task_reader.held_out import find_held_out_limit, question_number
from astune.task_reader.task_sets import TaskSets
from astune.types import Task

FEWEST_TESTED = 6
"""With fewer tasks no paired test can tell a gain from luck: five of five are p = 0.06."""
FEWEST_SEARCHED = 3


def divide(sets: TaskSets, share: float | None, seed: int) -> tuple[list[Task], list[Task]]:
    """The tasks of the search and those of the test: a share of the training tasks, with equal questions on one side;
    without a share those that the reader holds out. Raises TaskError where there are too few."""
    if not sets.training:
        raise TaskError("there are no training tasks to search on: set astune.task_reader")
    searched, tested = list(sets.training), list(sets.held_out)
    if share is not None:
        numbers = [question_number(task, seed) for task in sets.training]
        limit = find_held_out_limit(numbers, share)
        searched = [task for task, number in zip(sets.training, numbers, strict=True) if number >= limit]
        tested = [task for task, number in zip(sets.training, numbers, strict=True) if number < limit]
    if len(tested) >= FEWEST_TESTED and len(searched) >= FEWEST_SEARCHED:
        return searched, tested
    leaves = "null takes the held-out tasks of astune.task_reader:" if share is None else f"{share:g} leaves"
    needed = 0 if share is None else max(round(FEWEST_TESTED / share + 0.5), round(FEWEST_SEARCHED / (1 - share) + 0.5))
    raise TaskError(
        f"{len(sets.training)} training tasks: astune.prompts.holdout {leaves} {len(searched)} to search on and "
        f"{len(tested)} to test on; expected {FEWEST_SEARCHED} and {FEWEST_TESTED} or more, as fewer cannot tell a "
        f"gain from luck. Give more tasks{f', {needed} or more' if needed else ''}, or another astune.prompts.holdout"
    )
