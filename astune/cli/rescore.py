"""Recorded episodes before another judge."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from statistics import fmean

from astune.config.judges import TaskJudgeConfig
from astune.config.schema import AstuneConfig
from astune.monitor.episodes import EpisodeRecord, episode_to_row
from astune.monitor.jsonl import LineFile
from astune.recordings.recording import Recording
from astune.rollout.verdict import ask_group, unjudged, verdict_or_error, with_verdict
from astune.support.visible import tell
from astune.task_judge import GroupJudge, Judge, make_judge
from astune.task_judge.registry import import_registered
from astune.types import Episode

AT_ONCE = 16
"""Episodes that are judged side by side."""
MOST_SHOWN = 50
"""Changed verdicts that are shown; --out has all."""
REASON_LENGTH = 100


_PASSED = {False: 0, None: 1, True: 2}


@dataclass(frozen=True)
class Rescored:
    """An episode before and after. `after` is None where no judge is asked: the workflow or the model had failed."""

    recording: Recording
    after: Episode | None

    @property
    def change(self) -> str:
        before, after = self.recording.episode.verdict, None if self.after is None else self.after.verdict
        if self.after is None:
            return "left out"
        if after is None:
            return "could not judge"
        if before is None:
            return "newly judged"
        old, new = ((verdict.reward, _PASSED[verdict.passed]) for verdict in (before, after))
        return "same" if old == new else "up" if new > old else "down"


async def rescore_all(
    recordings: Iterator[Recording], config_of: Callable[[Recording], AstuneConfig], out: Path | None
) -> int:
    """Judges, prints what changed, and writes the episodes with their new verdicts. 1 if one could not be judged."""
    done: list[Rescored] = []
    with ExitStack() as stack:
        new = None if out is None else out.with_name(out.name + ".new")
        if new is not None:
            new.unlink(missing_ok=True)
        file = None if new is None else stack.enter_context(LineFile(new))
        async for one in _judged_in_order(recordings, config_of):
            if file is not None:
                recording = one.recording
                record = EpisodeRecord(recording.step, recording.phase, one.after or recording.episode)
                file.append(episode_to_row(record))
            done.append(_head(one))
    if new is not None and out is not None:
        os.replace(new, out)
    _show(done)
    if out is not None:
        tell(f"written {out}")
    return 1 if any(one.change == "could not judge" for one in done) else 0


def _head(one: Rescored) -> Rescored:
    """What is kept of an episode once it is written."""
    recording = replace(one.recording, episode=_without_turns(one.recording.episode))
    return Rescored(recording, None if one.after is None else _without_turns(one.after))


def _without_turns(episode: Episode) -> Episode:
    return replace(episode, turns=(), timelines=())


class _Judges:
    """The judge for each recording: one for all that share a configuration."""

    def __init__(self, config_of: Callable[[Recording], AstuneConfig]) -> None:
        self._config_of = config_of
        self._judges: dict[int, tuple[Judge, TaskJudgeConfig]] = {}

    def of(self, recording: Recording) -> tuple[Judge, TaskJudgeConfig]:
        astune = self._config_of(recording)
        config = astune.task_judge
        if id(config) not in self._judges:
            import_registered([named.judge for named in config.judges], astune.rollout.agentscope_learn_protocol)
            judge = make_judge(config)
            assert judge is not None, "--judge names one"
            self._judges[id(config)] = judge, config
        return self._judges[id(config)]


async def _judged_in_order(
    recordings: Iterator[Recording], config_of: Callable[[Recording], AstuneConfig]
) -> AsyncIterator[Rescored]:
    """In the order of the recordings; at most `AT_ONCE` are read and under way. A judge that compares the attempts at a
    task needs them all, so they are read first."""
    judges = _Judges(config_of)
    first = next(recordings)
    everything = chain([first], recordings)
    if isinstance(judges.of(first)[0], GroupJudge):
        for one in await _judged_together(list(everything), judges):
            yield one
        return
    under_way: deque[asyncio.Task[Rescored]] = deque()
    for recording in everything:
        under_way.append(asyncio.ensure_future(_rescored(recording, *judges.of(recording))))
        if len(under_way) == AT_ONCE:
            yield await under_way.popleft()
    while under_way:
        yield await under_way.popleft()


async def _rescored(recording: Recording, judge: Judge, config: TaskJudgeConfig) -> Rescored:
    episode = unjudged(recording.episode)
    if episode is None:
        return Rescored(recording, None)
    return Rescored(recording, with_verdict(episode, await verdict_or_error(judge, episode, config.seconds)))


async def _judged_together(recordings: Sequence[Recording], judges: _Judges) -> list[Rescored]:
    """As they were in the run: the attempts at one task in one step and phase are a group."""
    done = {i: Rescored(recording, None) for i, recording in enumerate(recordings)}
    groups: dict[tuple[int, int, str, str], dict[int, Episode]] = {}
    for i, recording in enumerate(recordings):
        episode = unjudged(recording.episode)
        if episode is not None:
            key = id(judges.of(recording)[0]), recording.step, recording.phase, episode.task.task_id
            groups.setdefault(key, {})[i] = episode
    limit = asyncio.Semaphore(AT_ONCE)

    async def judge_one(group: Mapping[int, Episode]) -> None:
        judge, config = judges.of(recordings[next(iter(group))])
        assert isinstance(judge, GroupJudge)
        async with limit:
            verdicts = await ask_group(judge, list(group.values()), config.seconds)
        for (i, episode), verdict in zip(group.items(), verdicts, strict=True):
            done[i] = Rescored(recordings[i], with_verdict(episode, verdict))

    await asyncio.gather(*(judge_one(group) for group in groups.values()))
    return list(done.values())


def _show(done: list[Rescored]) -> None:
    changed = [one for one in done if one.change not in ("same", "left out")]
    width = max((len(one.recording.episode.episode_id) for one in changed[:MOST_SHOWN]), default=0)
    for one in changed[:MOST_SHOWN]:
        assert one.after is not None
        old, new = _verdict(one.recording.episode), _verdict(one.after)
        tell(f"{one.recording.episode.episode_id:<{width}}  {old} -> {new}  {_reason(one.after)}".rstrip())
    if len(changed) > MOST_SHOWN:
        tell(f"... and {len(changed) - MOST_SHOWN} more")
    counts = {
        name: sum(one.change == name for one in done)
        for name in ("same", "up", "down", "newly judged", "could not judge", "left out")
    }
    listed = ", ".join(f"{count} {name}" for name, count in counts.items() if count or name in ("same", "up", "down"))
    tell(f"{len(done)} episodes: {listed}")
    if counts["left out"]:
        tell("left out: the workflow or the model failed, so there is nothing to judge")
    before = [one.recording.episode.reward for one in done]
    after = [one.recording.episode.reward if one.after is None else one.after.reward for one in done]
    tell(f"mean reward {_mean(before)} -> {_mean(after)}")


def _mean(rewards: list[float | None]) -> str:
    known = [reward for reward in rewards if reward is not None]
    return f"{fmean(known):.4f} of {len(known)}" if known else "none"


def _verdict(episode: Episode) -> str:
    verdict = episode.verdict
    if verdict is None:
        return "none"
    said = {True: " passed", False: " failed", None: ""}[verdict.passed]
    return f"{verdict.reward:g}{said}"


def _reason(episode: Episode) -> str:
    error, verdict = episode.error, episode.verdict
    reason = verdict.reason if verdict is not None else f"{error.kind}: {error.message}" if error is not None else ""
    text = " ".join(reason.split())
    return text if len(text) <= REASON_LENGTH else text[:REASON_LENGTH] + "…"
