"""Judge recorded episodes anew, with another judge."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from astune.config.judges import TaskJudgeConfig
from astune.config.schema import AstuneConfig
from astune.recordings.recording import Recording
from astune.rollout.verdict import ask_group, strip_verdict, verdict_or_error, with_verdict
from astune.task_judge import GroupJudge, Judge, make_judge
from astune.task_judge.judge_base import AT_ONCE
from astune.task_judge.registry import import_registered
from astune.types import Episode

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


async def judge_anew(
    recordings: Iterator[Recording], config_of: Callable[[Recording], AstuneConfig]
) -> AsyncIterator[Rescored]:
    """In the order of the recordings; at most `AT_ONCE` are read and under way. A judge that compares the attempts at a
    task needs them all, so they are read first."""
    judges = _Judges(config_of)
    first = next(recordings)
    everything = chain([first], recordings)
    if isinstance(judges.of(first)[0], GroupJudge):
        for one in await _judge_together(list(everything), judges):
            yield one
        return
    under_way: deque[asyncio.Task[Rescored]] = deque()
    for recording in everything:
        under_way.append(asyncio.ensure_future(_rescore(recording, *judges.of(recording))))
        if len(under_way) == AT_ONCE:
            yield await under_way.popleft()
    while under_way:
        yield await under_way.popleft()


async def _rescore(recording: Recording, judge: Judge, config: TaskJudgeConfig) -> Rescored:
    episode = strip_verdict(recording.episode)
    if episode is None:
        return Rescored(recording, None)
    return Rescored(recording, with_verdict(episode, await verdict_or_error(judge, episode, config.seconds)))


async def _judge_together(recordings: Sequence[Recording], judges: _Judges) -> list[Rescored]:
    """Judges groups as the run did: the attempts at one task in one step and phase."""
    done = {i: Rescored(recording, None) for i, recording in enumerate(recordings)}
    groups: dict[tuple[int, int, str, str], dict[int, Episode]] = {}
    for i, recording in enumerate(recordings):
        episode = strip_verdict(recording.episode)
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
