"""Which held-out tasks a run plays, in which ways of decoding, and when that is due."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple

from astune.config.schema import EvaluationConfig
from astune.task_reader.task_sets import TaskSets
from astune.training.schedule import is_due
from astune.types import Task

Decoding = Literal["sampled", "greedy"]
EXAMPLES = "examples"
"""Stands among the names of evaluations for the loss of held-out examples."""


class Evaluation(NamedTuple):
    """A set of held-out tasks and a way of decoding. `every` is how many steps lie between two evaluations."""

    held_out: str
    tasks: Sequence[Task]
    every: int
    decoding: Decoding
    attempts: int

    @property
    def name(self) -> str:
        """The part of names of metrics, files and episodes: "greedy", of a set with a name "hard/greedy"."""
        return f"{self.held_out}/{self.decoding}" if self.held_out else self.decoding


def evaluations_of(config: EvaluationConfig, sets: TaskSets) -> list[Evaluation]:
    """List all evaluations of a run: the held-out tasks and each set with a name, in each way of decoding. Greedy
    decoding makes one attempt, as all would be equal."""
    held_out = [("", sets.held_out, config.every)] if sets.held_out else []
    for name, tasks in sets.named.items():
        every = config.sets[name].every
        held_out.append((name, tasks, config.every if every is None else every))
    return [
        Evaluation(*each, decoding, config.attempts if decoding == "sampled" else 1)
        for each in held_out
        for decoding in config.decoding
    ]


def evaluations_left(
    config: EvaluationConfig,
    evaluations: Sequence[Evaluation],
    total_steps: int,
    step: int,
    evaluated: Collection[str],
) -> list[Evaluation]:
    """List the evaluations that are due at a step, less those whose names are in `evaluated`."""
    return [
        evaluation
        for evaluation in evaluations
        if _is_due(config, evaluation.every, total_steps, step) and evaluation.name not in evaluated
    ]


def are_examples_left(config: EvaluationConfig, total_steps: int, step: int, evaluated: Collection[str]) -> bool:
    """True if the loss of held-out examples is due at a step and not told yet."""
    return _is_due(config, config.every, total_steps, step) and EXAMPLES not in evaluated


def _is_due(config: EvaluationConfig, every: int, total_steps: int, step: int) -> bool:
    between = config.before if step == 0 else is_due(step, every)
    return config.after if step >= total_steps else between
