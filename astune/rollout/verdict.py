"""Give an episode its verdict: the reward that its workflow returned, or the judge's; a judge may fail."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

from astune.errors import JudgeError
from astune.rollout.setup import RolloutSetup
from astune.rollout.time_limit import within
from astune.support.user_values import contain, figure, show_value, text_of, traceback_of
from astune.task_judge.judge_base import GroupJudge, Judge, check_verdict
from astune.types import Episode, EpisodeError, StopReason, Verdict

FAILED = {StopReason.ERROR, StopReason.TIMEOUT}
NOT_JUDGED = {*FAILED, StopReason.LATE}
"""Ends that say nothing about the sampled tokens."""


async def judge_episode(episode: Episode, setup: RolloutSetup) -> Episode:
    """`episode` with its verdict, if it is one to be judged."""
    if episode.stop_reason in NOT_JUDGED:
        return episode
    output = episode.output
    try:
        if output is not None and output.reward is not None:
            reward = figure(output.reward)
            if reward is None:
                raise JudgeError(f"the workflow returned reward={show_value(output.reward)}; expected a finite number")
            # its metrics stay the output's: they are no judge's
            verdict = check_verdict(Verdict(reward, judged_by="workflow"), "the workflow")
        elif (judge := setup.judge_of(episode.task)) is not None:
            verdict = await ask_judge(judge, episode, setup.judge_timeout)
        elif output is None:
            return episode
        else:
            raise JudgeError(
                "the workflow returned no reward, and there is no judge: return WorkflowOutput(answer=..., reward=...) "
                "or set astune.task_judge.judge_protocol"
            )
    except Exception as error:
        return note_judge_error(episode, error)
    return replace(episode, verdict=verdict)


async def judge_together(episodes: Sequence[Episode], judge: GroupJudge, setup: RolloutSetup) -> list[Episode]:
    """The attempts at one task with their verdicts. Those that failed, or whose workflow returned the reward itself,
    are not shown to the judge."""
    shown = [episode for episode in episodes if _is_for_judge(episode)]
    verdicts = iter(await ask_group(judge, shown, setup.judge_timeout))
    return [
        with_verdict(episode, next(verdicts)) if _is_for_judge(episode) else await judge_episode(episode, setup)
        for episode in episodes
    ]


def _is_for_judge(episode: Episode) -> bool:
    return episode.stop_reason not in NOT_JUDGED and (episode.output is None or episode.output.reward is None)


def with_verdict(episode: Episode, verdict: Verdict | Exception) -> Episode:
    """The judged episode, or what is left of it where the judge could not tell."""
    if isinstance(verdict, Exception):
        return note_judge_error(episode, verdict)
    return replace(episode, verdict=verdict)


USERS = "users"
"""`Verdict.judged_by` of what the people said whom an agent served."""


def strip_verdict(episode: Episode) -> Episode | None:
    """The episode as its judge saw it; None if it is one that is not judged, as in a run.

    An episode whose judge failed no longer says how its workflow ended; it counts as completed.
    """
    if episode.stop_reason in (StopReason.TIMEOUT, StopReason.LATE, StopReason.CANCELLED):
        return None
    if episode.stop_reason is not StopReason.ERROR:
        return replace(episode, verdict=None)
    if episode.error is None or episode.error.stage != "judge":
        return None
    return replace(episode, verdict=None, error=None, stop_reason=StopReason.COMPLETED)


def note_judge_error(episode: Episode, error: Exception) -> Episode:
    """The episode of which a judge that raised could not tell."""
    said = EpisodeError("judge", type(error).__name__, text_of(error), traceback_of(error))
    return replace(episode, stop_reason=StopReason.ERROR, error=said)


async def ask_judge(judge: Judge, episode: Episode, seconds: float) -> Verdict:
    """The judge's verdict, checked. Raises JudgeError after `seconds` or for what is no verdict, and whatever the judge
    raises."""
    return _check(await _in_time(lambda: judge.judge(episode.task, episode), seconds))


async def verdict_or_error(judge: Judge, episode: Episode, seconds: float) -> Verdict | Exception:
    """The verdict of `ask_judge`, or the error that it raises."""
    try:
        return await ask_judge(judge, episode, seconds)
    except Exception as error:
        return error


async def ask_group(judge: GroupJudge, episodes: Sequence[Episode], seconds: float) -> list[Verdict | Exception]:
    """The judge's answer for each attempt at one task, checked: a verdict, or the error that kept it from one. A lone
    attempt has nothing to be compared with: it is judged by itself. All must be done within `seconds`."""
    if not episodes:
        return []
    if len(episodes) == 1:
        return [await verdict_or_error(judge, episodes[0], seconds)]
    task = episodes[0].task
    try:
        answer = await _in_time(lambda: judge.judge_group(task, episodes), seconds)
        if not isinstance(answer, Sequence) or len(answer) != len(episodes):
            raise JudgeError(
                f"the judge returned {show_value(answer)}; expected a verdict for each of {len(episodes)} episodes"
            )
    except Exception as error:
        return [error] * len(episodes)
    return [_check_or_catch(verdict) for verdict in answer]


async def _in_time(call: Callable[[], Coroutine[Any, Any, object]], seconds: float) -> object:
    with contain("the judge"):
        work = call()
    finished, answer = await within(work, seconds, "the judge")
    if not finished:
        raise JudgeError(f"the judge took longer than {seconds:g} s (astune.task_judge.timeout)")
    return answer


def _check_or_catch(verdict: object) -> Verdict | Exception:
    try:
        return verdict if isinstance(verdict, Exception) else _check(verdict)
    except Exception as error:
        return error


def _check(verdict: object) -> Verdict:
    with contain("the judge"):
        if not isinstance(verdict, Verdict):
            raise JudgeError(f"the judge returned {show_value(verdict)}; expected a Verdict")
        return check_verdict(verdict, text_of(verdict.judged_by or "the judge"))
