"""`ReasoningGymJudge`: the verifier of the data set that reasoning-gym made a task from."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Mapping
from typing import Any

from astune.config.judges import TaskJudgeConfig
from astune.errors import JudgeError
from astune.task_judge.answer_text import answer_text, cut_off, quote
from astune.task_judge.judge_base import seconds_for_a_check
from astune.task_judge.math.final_answer import AnswerFormat, extract_answer, outside_thinking
from astune.types import Episode, Task, Verdict
from astune.workers.pool import RequestFailed
from astune.workers.reasoning_gym_client import Verifier

NAME = "ReasoningGymJudge"
MARKS: tuple[AnswerFormat, ...] = ("answer_tag", "boxed", "the_answer_is")
"""Marks that `answer_format: auto` looks for, in this order; not ####, which mazes are drawn with."""
EMPTY = re.compile(r"<answer>\s*</answer>|\\boxed\s*\{\s*\}", re.IGNORECASE)
ENTRY = {"options", "answer", "metadata"}
"""The keys of `entry`, a column of its tasks."""


class ReasoningGymJudge:
    r"""The reward is the score that the data set's own verifier gives the final answer, 1 for a right one.

        verdict = await ReasoningGymJudge(TaskJudgeConfig()).judge(task, episode)   # <answer>3 * (4 + 1)</answer>
        verdict.reason  # "countdown scores '3 * (4 + 1)' 0.05"

    Many verifiers give a wrong answer in the right form a little. The final answer is taken from where
    `astune.task_judge.answer_format` says; "auto" looks for <answer>, \boxed{} and "the answer is", and takes a text
    without them whole, but for what was only thought. An answer that the verifier cannot read, one that was cut off,
    and one that takes a tenth of `astune.task_judge.timeout` of computing to score while the reference does not, is
    wrong.
    Raises `JudgeError` for a task that reasoning-gym did not make, for an episode that broke off without output, and
    if scoring the reference takes too long as well.
    """

    def __init__(self, config: TaskJudgeConfig, workers: int = 2) -> None:
        self._answer_format = config.answer_format
        self._verifier = Verifier(seconds_for_a_check(config), workers)

    async def judge(self, task: Task, episode: Episode) -> Verdict:
        dataset, entry = task.metadata.get("dataset"), task.metadata.get("entry")
        if not isinstance(dataset, str) or not isinstance(entry, Mapping) or set(entry) != ENTRY:
            raise JudgeError(
                f"task {task.task_id!r} has no fields 'dataset' and 'entry' as reasoning-gym's tasks have: {NAME} "
                "judges the tasks of astune.task_reader.type reasoning_gym"
            )
        text = answer_text(task, episode)
        if cut_off(episode, text):
            return _wrong("the answer was cut off before it ended")
        final = self._final_answer(text)
        if not final:
            is_there = text.strip() and self._answer_format != "auto"
            return _wrong(f"no answer in the format {self._answer_format!r}" if is_there else "no answer")
        try:
            reply = await self._score(dataset, entry, final)
        except RequestFailed as error:
            with contextlib.suppress(RequestFailed):
                await self._score(dataset, entry, str(entry["answer"] or ""))
                return _wrong(f"{error}; the reference alone is scored quickly")
            raise
        reward, raised = reply["score"], reply.get("raised")
        reason = f"{dataset} scores {quote(final)} {reward:g}"
        return Verdict(reward, reward >= 1, f"{reason}: {raised}" if raised else reason, {"answer_found": 1.0}, NAME)

    async def _score(self, dataset: str, entry: Mapping[str, Any], answer: str) -> dict[str, Any]:
        return await asyncio.shield(asyncio.wrap_future(self._verifier.score(dataset, dict(entry), answer)))

    def _final_answer(self, text: str) -> str:
        """Empty if there is none."""
        formats = MARKS if self._answer_format == "auto" else (self._answer_format,)
        for answer_format in formats:
            if found := extract_answer(text, answer_format):
                return found.text
        said = outside_thinking(text)
        return said.strip() if self._answer_format == "auto" and not EMPTY.search(said) else ""


def _wrong(reason: str) -> Verdict:
    return Verdict(0.0, False, reason, {"answer_found": 0.0}, NAME)
