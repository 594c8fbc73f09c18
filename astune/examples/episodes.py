"""Recorded episodes as examples: good against bad attempts at one task, or each by itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from astune.config.schema import AstuneConfig
from astune.errors import TaskError
from astune.examples.example import TrainingExample
from astune.monitor.episode_filter import parse_filter
from astune.monitor.episodes import EpisodeRecord, episode_from_row
from astune.task_reader.jsonl import read_jsonl
from astune.types import Timeline

Judged = tuple[float, bool, str, tuple[Timeline, ...]]
"""Reward, whether it passed, place, and the rows with loss, of an episode."""


def recorded(place: str, row: Mapping[str, Any]) -> EpisodeRecord:
    """The episode in a line. Raises `TaskError` that begins with `place`."""
    try:
        return episode_from_row(row)
    except (KeyError, TypeError, ValueError) as error:
        raise TaskError(f"{place}: not an episode that ASTune recorded ({type(error).__name__}: {error})") from error


def judged(path: Path, config: AstuneConfig) -> Iterator[TrainingExample]:
    """With dpo: of the attempts at one task in one step the best against the worst, the second best against the second
    worst and so on, as long as their rewards differ. With kto: every attempt, good if it passed, or, where the judge
    speaks of no success, if its reward is above the mean of its group."""
    groups: dict[tuple[int, str, str], list[Judged]] = {}
    keep = None if config.trainer.examples_filter is None else parse_filter(config.trainer.examples_filter)
    for place, row in read_jsonl(path):
        record = recorded(place, row)
        episode = record.episode
        rows = tuple(line for line in episode.timelines if line.trained_tokens)
        if episode.verdict is None or not rows or (keep is not None and not keep(record)):
            continue
        group = groups.setdefault((record.step, record.phase, episode.task.task_id), [])
        group.append((episode.verdict.reward, bool(episode.verdict.passed), place, rows))
    for group in groups.values():
        yield from _pairs(group) if config.algorithm.method == "dpo" else _one_by_one(group)


def _pairs(group: list[Judged]) -> Iterator[TrainingExample]:
    ranked = sorted(group, key=lambda each: -each[0])
    for best, worst in zip(ranked, reversed(ranked), strict=True):
        if best[0] <= worst[0]:
            return
        liked = (True,) * len(best[3]) + (False,) * len(worst[3])
        yield TrainingExample(best[3] + worst[3], best[2], liked)


def _one_by_one(group: list[Judged]) -> Iterator[TrainingExample]:
    mean = sum(reward for reward, *_ in group) / len(group)
    any_passed = any(passed for _, passed, _, _ in group)
    for reward, passed, place, rows in group:
        good = passed if any_passed else reward > mean
        yield TrainingExample(rows, place, (good,) * len(rows))
