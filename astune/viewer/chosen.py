"""Choose the episodes of the report, and compute figures over episodes: means over tasks, pairs before and after,
examples, failures."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from astune.support.statistics import MeanOverTasks, estimate, without_noise
from astune.viewer.run_index import IndexedEpisode

KIND_COLUMNS = ("kind", "type", "category", "level", "difficulty", "subject", "source")
"""Columns of a task's row that are looked at first when results are split by kind of task."""
MOST_KINDS = 12
FEWEST_PER_KIND = 5


def scores(entries: Sequence[IndexedEpisode]) -> dict[str, float]:
    """The mean score of each task's attempts, as in the metrics, for tasks of which an attempt was judged."""
    by_task: dict[str, list[float]] = defaultdict(list)
    for entry in entries:
        if entry.score is not None:
            by_task[entry.task_id].append(entry.score)
    return {task: math.fsum(each) / len(each) for task, each in by_task.items()}


def over_tasks(entries: Sequence[IndexedEpisode]) -> MeanOverTasks | None:
    """The mean over the tasks that have a score, with the interval that the metrics have of it; None if none has."""
    values = list(scores(entries).values())
    successes = all(entry.passed is not None for entry in entries if entry.score is not None)
    return estimate(values, share=successes) if values else None


def kind_column(entries: Sequence[IndexedEpisode]) -> str | None:
    """A column of the tasks' rows that sorts them into a few kinds of several tasks each, if there is one."""
    values: dict[str, Counter[str]] = defaultdict(Counter)
    for entry in entries:
        for key, value in entry.metadata.items():
            if isinstance(value, str) or (key in KIND_COLUMNS and isinstance(value, int)):
                values[key][str(value)] += 1
    fitting = [
        key
        for key, counts in values.items()
        if 2 <= len(counts) <= MOST_KINDS and min(counts.values()) >= FEWEST_PER_KIND and counts.total() == len(entries)
    ]
    known = [key for key in KIND_COLUMNS if key in fitting]
    return next(iter(known + fitting), None)


def by_kind(entries: Sequence[IndexedEpisode], column: str) -> dict[str, list[IndexedEpisode]]:
    kinds: dict[str, list[IndexedEpisode]] = defaultdict(list)
    for entry in entries:
        kinds[str(entry.metadata.get(column, ""))].append(entry)
    return dict(sorted(kinds.items()))


def at_step(entries: Sequence[IndexedEpisode], step: int) -> list[IndexedEpisode]:
    return [entry for entry in entries if entry.step == step]


@dataclass(frozen=True)
class Pair:
    """One held-out task before and after training, and what the pair is an example of."""

    story: str
    before: IndexedEpisode
    after: IndexedEpisode


STORIES = {
    (False, True): "learned",
    (False, False): "still fails",
    (True, False): "lost",
    (True, True): "solved before and after",
}


def pick_pairs(entries: Sequence[IndexedEpisode]) -> list[Pair]:
    """Held-out tasks for show: up to two learned, then one of each other story, the first of its kind in the file."""
    steps = sorted({entry.step for entry in entries})
    if len(steps) < 2:
        return []
    before = {entry.task_id: entry for entry in at_step(entries, steps[0])}
    stories: dict[str, list[Pair]] = defaultdict(list)
    for after in at_step(entries, steps[-1]):
        if after.task_id in before:
            first = before[after.task_id]
            story = STORIES[_is_success(first), _is_success(after)]
            stories[story].append(Pair(story, first, after))
    return [pair for story in STORIES.values() for pair in stories[story][: 2 if story == "learned" else 1]]


def _is_success(entry: IndexedEpisode) -> bool:
    return (entry.score or 0.0) >= 0.5


@dataclass(frozen=True)
class ExampleEpisode:
    """A training episode for show, and the attempts that it is compared with, itself among them."""

    entry: IndexedEpisode
    group: tuple[IndexedEpisode, ...]


def pick_training(entries: Sequence[IndexedEpisode]) -> dict[int, list[ExampleEpisode]]:
    """From the first, middle and last step: the best and the worst attempt of the group that differs most."""
    steps = sorted({entry.step for entry in entries})
    chosen = sorted({steps[0], steps[len(steps) // 2], steps[-1]}) if steps else []
    return {step: _examples(at_step(entries, step)) for step in chosen}


def _examples(entries: Sequence[IndexedEpisode]) -> list[ExampleEpisode]:
    groups: dict[str, list[IndexedEpisode]] = defaultdict(list)
    for entry in entries:
        groups[entry.task_id].append(entry)
    group = max(groups.values(), key=_spread)
    ranked = sorted(group, key=lambda entry: -math.inf if entry.reward is None else entry.reward)
    shown = [ranked[-1], ranked[0]] if _spread(group) > 0 else ranked[:1]
    return [ExampleEpisode(entry, tuple(group)) for entry in shown]


def _spread(group: Sequence[IndexedEpisode]) -> float:
    rewards = [entry.reward for entry in group if entry.reward is not None]
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


def failures(by_phase: Mapping[str, Sequence[IndexedEpisode]]) -> list[FailureKind]:
    """Count the ways in which episodes failed, most frequent first. `example` is the first such message."""
    found = []
    for phase, entries in by_phase.items():
        groups: dict[tuple[str, str], list[IndexedEpisode]] = defaultdict(list)
        for entry in entries:
            if entry.error is not None or entry.stop_reason != "completed":
                groups[entry.error or entry.stop_reason, entry.error_place].append(entry)
        found += [
            FailureKind(phase, what, place, len(group), group[0].error_message)
            for (what, place), group in groups.items()
        ]
    return sorted(found, key=lambda failure: -failure.count)
