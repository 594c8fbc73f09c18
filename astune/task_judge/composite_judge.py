"""Several judges of one episode: the reward is the sum of theirs, each times its weight."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from astune.errors import JudgeError
from astune.task_judge.judge_base import GroupJudge, Judge
from astune.types import Episode, Task, Verdict


@dataclass(frozen=True)
class WeightedJudge:
    """One of the judges. `name` is unique among them: its metrics begin with it."""

    name: str
    weight: float
    judge: Judge


def make_composite(judges: Sequence[tuple[str, float, Judge]]) -> CompositeJudge:
    """A judge of (name, weight, judge); of equal names the later ones get a number."""
    seen: Counter[str] = Counter()
    parts = []
    for name, weight, judge in judges:
        short = name.rpartition(":")[2].rpartition("->")[2].rpartition(".")[2]
        seen[short] += 1
        parts.append(WeightedJudge(short if seen[short] == 1 else f"{short}_{seen[short]}", weight, judge))
    together = any(isinstance(part.judge, GroupJudge) for part in parts)
    return CompositeGroupJudge(parts) if together else CompositeJudge(parts)


class CompositeJudge:
    """The reward is the sum of weight times reward; it counts as success if every part that speaks of success says so.

        LlmAsJudge 0.8 (weight 0.5), brief 0.6 (weight 1)    reward 1.0, metrics {"LlmAsJudge": 0.8, "brief": 0.6, ...}

    The metrics of a part follow as `<part>/<metric>`. If one part cannot tell, the whole cannot; if one is undecided
    between success and failure, the whole is, unless another part says failure.
    """

    def __init__(self, parts: Sequence[WeightedJudge]) -> None:
        self._parts = tuple(parts)

    async def judge(self, task: Task, episode: Episode) -> Verdict:
        found = await asyncio.gather(*(part.judge.judge(task, episode) for part in self._parts), return_exceptions=True)
        return self._together(found)

    def _together(self, found: Sequence[Verdict | BaseException]) -> Verdict:
        verdicts: list[Verdict] = []
        for part, verdict in zip(self._parts, found, strict=True):
            if isinstance(verdict, Exception):
                raise JudgeError(f"{part.name}: {verdict}") from verdict
            if isinstance(verdict, BaseException):
                raise verdict
            verdicts.append(verdict)
        pairs = list(zip(self._parts, verdicts, strict=True))
        metrics = {part.name: float(verdict.reward) for part, verdict in pairs}
        for part, verdict in pairs:
            metrics |= {f"{part.name}/{name}": float(value) for name, value in verdict.metrics.items()}
        passed = [verdict.passed for verdict in verdicts if verdict.passed is not None]
        undecided = all(passed) and any(verdict.undecided for verdict in verdicts)
        return Verdict(
            reward=math.fsum(part.weight * verdict.reward for part, verdict in pairs),
            passed=all(passed) if passed and not undecided else None,
            reason="; ".join(
                f"{part.name} {verdict.reward:g}: {verdict.reason}".rstrip(": ") for part, verdict in pairs
            ),
            metrics=metrics,
            judged_by=" + ".join(verdict.judged_by or part.name for part, verdict in pairs),
            undecided=undecided,
        )


class CompositeGroupJudge(CompositeJudge):
    """A `CompositeJudge` of which at least one part judges groups."""

    async def judge_group(self, task: Task, episodes: Sequence[Episode]) -> Sequence[Verdict | Exception]:
        columns = await asyncio.gather(*(_column(part.judge, task, episodes) for part in self._parts))
        return [self._verdict_or_error(row) for row in zip(*columns, strict=True)]

    def _verdict_or_error(self, row: Sequence[Verdict | BaseException]) -> Verdict | Exception:
        try:
            return self._together(row)
        except JudgeError as error:
            return error


async def _column(judge: Judge, task: Task, episodes: Sequence[Episode]) -> Sequence[Verdict | BaseException]:
    """The verdicts of one judge on each episode. One that raises has none on any."""
    if not isinstance(judge, GroupJudge):
        return await asyncio.gather(*(judge.judge(task, episode) for episode in episodes), return_exceptions=True)
    try:
        return await judge.judge_group(task, episodes)
    except Exception as error:
        return [error] * len(episodes)
