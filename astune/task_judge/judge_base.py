"""The protocol of judges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable

from astune.config.judges import SECONDS, TaskJudgeConfig
from astune.errors import JudgeError
from astune.support.user_values import figure, figures, no_figure, show_value, text_of
from astune.types import Episode, Task, Verdict

AT_ONCE = 16
"""Answers, or recorded episodes, that a command asks a judge about at the same time."""


def seconds_for_a_check(config: TaskJudgeConfig) -> float:
    """Most time for a check of one answer by a program that the answer can make slow, which may compute for a fifth of
    that: half of `astune.task_judge.timeout`. The rest is for finding out whether the reference alone is quick."""
    return (config.timeout or SECONDS) / 2


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
    """The verdict with its reward and its metrics as plain finite numbers. Raises `JudgeError` where they are none."""
    reward, passed = figure(verdict.reward), figure(verdict.passed)
    if reward is None:
        raise JudgeError(f"{judged_by}: {no_figure('reward', verdict.reward)}")
    if verdict.passed is not None and passed not in (0.0, 1.0):
        raise JudgeError(f"{judged_by}: passed must be true, false or None, found {show_value(verdict.passed)}")
    try:
        metrics = figures(verdict.metrics)
    except ValueError as error:
        raise JudgeError(f"{judged_by}: {error}") from error
    return replace(
        verdict,
        reward=reward,
        passed=None if verdict.passed is None else bool(passed),
        reason="" if verdict.reason is None else text_of(verdict.reason),
        metrics=metrics,
        judged_by="" if verdict.judged_by is None else text_of(verdict.judged_by),
    )


def judging_cost(verdicts: Sequence[Verdict]) -> dict[str, float]:
    """Sums of `calls`, `cached` replies, `tokens` and, where all of it is known, `cost`; nothing if no model was asked.

    Parts of a judge that is made of several count too. Calls for episodes without a verdict are not known here.
    """
    calls = metric_values(verdicts, "llm_calls")
    if not calls:
        return {}
    tokens = [*metric_values(verdicts, "llm_prompt_tokens"), *metric_values(verdicts, "llm_completion_tokens")]
    sums = {"calls": sum(calls), "cached": sum(metric_values(verdicts, "llm_cached")), "tokens": sum(tokens)}
    costs = metric_values(verdicts, "llm_cost")
    return {**sums, "cost": sum(costs)} if len(costs) == len(calls) else sums


def metric_values(verdicts: Sequence[Verdict], name: str) -> list[float]:
    """A metric of all verdicts, also of the parts of a judge that is made of several."""
    return [
        float(value) for verdict in verdicts for key, value in verdict.metrics.items() if key.rpartition("/")[2] == name
    ]
