"""The protocol of judges."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Protocol, runtime_checkable

from astune.errors import JudgeError
from astune.types import Episode, Task, Verdict

SHARE_OF_AN_ANSWER = 0.25
"""Of `astune.task_judge.timeout`: most time for a check of one answer by a program that the answer can make slow. The
rest is for finding out whether the reference alone is quick."""


@runtime_checkable
class Judge(Protocol):
    """Says how good an episode was. Many episodes are judged at the same time by one object."""

    async def judge(self, task: Task, episode: Episode) -> Verdict:
        """A verdict with a finite reward. Raises `JudgeError` where the judge cannot tell; such an episode gets
        no reward at all, which is not the same as a reward of 0."""


@runtime_checkable
class GroupJudge(Judge, Protocol):
    """Judges the attempts at one task together, once all of them have ended: because it compares them, or because
    they must have the same measure. An episode that is alone, as in an evaluation, goes to `judge`."""

    async def judge_group(self, task: Task, episodes: Sequence[Episode]) -> Sequence[Verdict | Exception]:
        """For each episode, in order, a verdict or the error that kept the judge from one. Raises `JudgeError`
        where it cannot tell of any."""


async def judge_alone(judge: GroupJudge, task: Task, episode: Episode) -> Verdict:
    """The verdict on a group of one. Raises what kept the judge from it."""
    (verdict,) = await judge.judge_group(task, [episode])
    if isinstance(verdict, Exception):
        raise verdict
    return verdict


def check_verdict(verdict: Verdict, judged_by: str) -> Verdict:
    """`verdict` itself, if its reward and metrics are finite numbers. Raises `JudgeError` otherwise."""
    for name, value in {"reward": verdict.reward, **verdict.metrics}.items():
        if not isinstance(value, Real) or not math.isfinite(value):
            raise JudgeError(f"{judged_by}: {name} must be a finite number, found {value!r}")
    return verdict
