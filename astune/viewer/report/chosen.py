"""Episodes chosen for the report, and figures over them: means over tasks, pairs before and after, examples,
failures."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from astune.support.statistics import MeanOverTasks, estimate, without_noise
from astune.viewer.heads import Head

KIND_COLUMNS = ("kind", "type", "category", "level", "difficulty", "subject", "source")
"""Columns of a task's row that are looked at first when results are split by kind of task."""
MOST_KINDS = 12
FEWEST_PER_KIND = 5


def scores(heads: Sequence[Head]) -> dict[str, float]:
    """The mean score of each task's attempts, as in the metrics, for tasks of which an attempt was judged."""
    by_task: dict[str, list[float]] = defaultdict(list)
    for head in heads:
        if head.score is not None:
            by_task[head.task_id].append(head.score)
    return {task: math.fsum(each) / len(each) for task, each in by_task.items()}


def over_tasks(heads: Sequence[Head]) -> MeanOverTasks | None:
    """The mean over the tasks that have a score, with the interval that the metrics have of it; None if none has."""
    values = list(scores(heads).values())
    successes = all(head.passed is not None for head in heads if head.score is not None)
    return estimate(values, share=successes) if values else None


def kind_column(heads: Sequence[Head]) -> str | None:
    """A column of the tasks' rows that sorts them into a few kinds of several tasks each, if there is one."""
    values: dict[str, Counter[str]] = defaultdict(Counter)
    for head in heads:
        for key, value in head.metadata.items():
            if isinstance(value, str) or (key in KIND_COLUMNS and isinstance(value, int)):
                values[key][str(value)] += 1
    fitting = [
        key
        for key, counts in values.items()
        if 2 <= len(counts) <= MOST_KINDS and min(counts.values()) >= FEWEST_PER_KIND and counts.total() == len(heads)
    ]
    known = [key for key in KIND_COLUMNS if key in fitting]
    return next(iter(known + fitting), None)


def by_kind(heads: Sequence[Head], column: str) -> dict[str, list[Head]]:
    kinds: dict[str, list[Head]] = defaultdict(list)
    for head in heads:
        kinds[str(head.metadata.get(column, ""))].append(head)
    return dict(sorted(kinds.items()))


def at_step(heads: Sequence[Head], step: int) -> list[Head]:
    return [head for head in heads if head.step == step]


@dataclass(frozen=True)
class Pair:
    """One held-out task before and after training, and what the pair is an example of."""

    story: str
    before: Head
    after: Head


STORIES = {
    (False, True): "learned",
    (False, False): "still fails",
    (True, False): "lost",
    (True, True): "solved before and after",
}


def pick_pairs(heads: Sequence[Head]) -> list[Pair]:
    """Held-out tasks for show: up to two learned, then one of each other story, the first of its kind in the file."""
    steps = sorted({head.step for head in heads})
    if len(steps) < 2:
        return []
    before = {head.task_id: head for head in at_step(heads, steps[0])}
    stories: dict[str, list[Pair]] = defaultdict(list)
    for after in at_step(heads, steps[-1]):
        if after.task_id in before:
            first = before[after.task_id]
            story = STORIES[_is_success(first), _is_success(after)]
            stories[story].append(Pair(story, first, after))
    return [pair for story in STORIES.values() for pair in stories[story][: 2 if story == "learned" else 1]]


def _is_success(head: Head) -> bool:
    return (head.score or 0.0) >= 0.5


@dataclass(frozen=True)
class ExampleEpisode:
    """A training episode for show, and the attempts that it is compared with, itself among them."""

    head: Head
    group: tuple[Head, ...]


def pick_training(heads: Sequence[Head]) -> dict[int, list[ExampleEpisode]]:
    """From the first, middle and last step: the best and the worst attempt of the group that differs most."""
    steps = sorted({head.step for head in heads})
    chosen = sorted({steps[0], steps[len(steps) // 2], steps[-1]}) if steps else []
    return {step: _examples(at_step(heads, step)) for step in chosen}


def _examples(heads: Sequence[Head]) -> list[ExampleEpisode]:
    groups: dict[str, list[Head]] = defaultdict(list)
    for head in heads:
        groups[head.task_id].append(head)
    group = max(groups.values(), key=_spread)
    ranked = sorted(group, key=lambda head: -math.inf if head.reward is None else head.reward)
    shown = [ranked[-1], ranked[0]] if _spread(group) > 0 else ranked[:1]
    return [ExampleEpisode(head, tuple(group)) for head in shown]


def _spread(group: Sequence[Head]) -> float:
    rewards = [head.reward for head in group if head.reward is not None]
    equal = without_noise(rewards)
    return max(equal) - min(equal) if equal else -1.0


@dataclass(frozen=True)
class FailureKind:
    """A way in which episodes ended other than by an answer that was judged."""

    phase: str
    what: str
    place: str
    count: int
    example: str


def failures(heads_by_phase: Mapping[str, Sequence[Head]]) -> list[FailureKind]:
    """Most frequent first. `example` is the message of the first error of the kind."""
    found = []
    for phase, heads in heads_by_phase.items():
        groups: dict[tuple[str, str], list[Head]] = defaultdict(list)
        for head in heads:
            if head.error is not None or head.stop_reason != "completed":
                groups[head.error or head.stop_reason, head.error_place].append(head)
        found += [
            FailureKind(phase, what, place, len(group), group[0].error_message)
            for (what, place), group in groups.items()
        ]
    return sorted(found, key=lambda failure: -failure.count)
