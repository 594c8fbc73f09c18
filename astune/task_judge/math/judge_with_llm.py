"""`MathAnswerAndLlmAsJudge`: mathematics decides where it can, a model where it cannot."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from astune.config.judges import SECONDS, TaskJudgeConfig
from astune.errors import JudgeError
from astune.task_judge.judge_base import judge_alone
from astune.task_judge.llm.judge import LlmAsJudge
from astune.task_judge.math.judge import MathAnswerAsJudge, MathOutcome, MathResult
from astune.types import Episode, Task, Verdict

UNSETTLED = (MathOutcome.UNREAD, MathOutcome.FAILED)


class MathAnswerAndLlmAsJudge:
    r"""The reward of `MathAnswerAsJudge` where it can tell, that of `LlmAsJudge` where it cannot.

        reference 72, answer \boxed{73}                 wrong, no model is asked
        reference 72, answer \boxed{six dozen}          a model is asked
        reference 72, answer "It comes to 72 clips"     a model is asked: no accepted format

    A model is also asked where the reference is words that the answer does not repeat, and where the comparison
    failed or took too long. No answer, and one that was cut off, are wrong. The attempts of a group that need a model
    are judged by one model. Its judgement is pointwise whatever `astune.task_judge.llm.mode` says, because the others'
    rewards are no comparisons. The metric `asked_llm` is 1 where a model was asked.
    """

    def __init__(self, config: TaskJudgeConfig) -> None:
        """Raises ConfigError without `astune.task_judge.llm.models`."""
        seconds = min(config.timeout or SECONDS, SECONDS)  # the model still has to answer within `config.seconds`
        self._math = MathAnswerAsJudge(config.model_copy(update={"timeout": seconds}))
        llm = config.llm.model_copy(update={"mode": "pointwise"})
        # The model sees the whole answer: it is asked just because the format's part of it was none or not enough.
        self._llm = LlmAsJudge(config.model_copy(update={"llm": llm, "answer_format": "auto"}))

    async def judge(self, task: Task, episode: Episode) -> Verdict:
        """Raises `JudgeError` where neither can tell."""
        return await judge_alone(self, task, episode)

    async def judge_group(self, task: Task, episodes: Sequence[Episode]) -> Sequence[Verdict | Exception]:
        results = await asyncio.gather(*(self._result_of(task, episode) for episode in episodes))
        unsettled = [
            (episode, result)
            for episode, result in zip(episodes, results, strict=True)
            if isinstance(result, MathResult) and result.outcome in UNSETTLED
        ]
        of_llm = iter(await self._ask_llm(task, unsettled))
        verdicts: list[Verdict | Exception] = []
        for result in results:
            if isinstance(result, JudgeError):
                verdicts.append(result)
            elif result.outcome in UNSETTLED:
                verdicts.append(next(of_llm))
            else:
                verdicts.append(_mark_verdict(result.verdict(), result, asked_llm=False))
        return verdicts

    async def _result_of(self, task: Task, episode: Episode) -> MathResult | JudgeError:
        try:
            return await self._math.result_of(task, episode)
        except JudgeError as error:
            return error

    async def _ask_llm(self, task: Task, unsettled: Sequence[tuple[Episode, MathResult]]) -> list[Verdict | Exception]:
        """The verdict of the model on each. One that cannot be judged costs the others nothing."""
        if not unsettled:
            return []
        try:
            found = await self._llm.judge_group(task, [episode for episode, _ in unsettled])
        except JudgeError as error:
            found = [error] * len(unsettled)
        return [
            JudgeError(f"{result.reason}; {verdict}")
            if isinstance(verdict, Exception)
            else _mark_verdict(verdict, result, asked_llm=True)
            for (_, result), verdict in zip(unsettled, found, strict=True)
        ]


def _mark_verdict(verdict: Verdict, result: MathResult, *, asked_llm: bool) -> Verdict:
    return replace(verdict, metrics={**verdict.metrics, **result.metrics, "asked_llm": float(asked_llm)})
