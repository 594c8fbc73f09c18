"""`MathAnswerAsJudge`: is the final answer of an episode mathematically equal to the reference answer?"""

from __future__ import annotations

from astune.config.judges import TaskJudgeConfig
from astune.errors import JudgeError
from astune.task_judge.answer_text import answer_text, cut_off
from astune.task_judge.math_answer import compare, extract_answer, for_algebra, normalise, reference_answer
from astune.task_judge.math_pool import MathPool
from astune.types import Episode, Task, Verdict

NAME = "MathAnswerAsJudge"


class MathAnswerAsJudge:
    """Reward 1.0 for a right final answer, 0.0 for a wrong one and for none.

        verdict = await MathAnswerAsJudge(TaskJudgeConfig()).judge(task, episode)
        verdict.reason  # "'72' (boxed) equals the reference '72'"

    Only an answer that is marked as one counts (`astune.task_judge.answer_format`), never the last number of a text.
    A last message that ran into its token limit is no answer: rewarding it would teach the policy not to stop.
    Numbers are compared exactly and in this process, formulas by math-verify in `workers` processes.
    Raises `JudgeError` for a task without reference, a reference that is no mathematics, an answer that is neither
    text nor number, an episode that broke off without output, and a comparison that takes longer than
    `astune.task_judge.timeout`: none of them says anything about the answer.
    """

    def __init__(self, config: TaskJudgeConfig, workers: int = 2) -> None:
        self._answer_format = config.answer_format
        self._pool = MathPool(workers, config.timeout or 10.0)

    async def judge(self, task: Task, episode: Episode) -> Verdict:
        if task.answer is None or not (reference := reference_answer(task.answer)):
            raise JudgeError(
                f"task {task.task_id!r} has no reference answer, which {NAME} compares with; "
                "astune.task_reader.fields.answer names its column"
            )
        text = answer_text(task, episode)
        if cut_off(episode, text):
            return Verdict(0.0, False, "the answer was cut off before it ended", {"answer_found": 0.0}, NAME)
        final = extract_answer(text, self._answer_format)
        if final is None:
            reason = "no answer" if not text.strip() else f"no answer in the format {self._answer_format!r}"
            return Verdict(0.0, False, reason, {"answer_found": 0.0}, NAME)
        try:
            right = await self._equal(normalise(reference), normalise(final.text))
        except JudgeError as error:
            raise JudgeError(f"task {task.task_id!r}: {error}") from error
        relation = "equals" if right else "does not equal"
        reason = f"{_short(final.text)} ({final.found_in}) {relation} the reference {_short(reference)}"
        return Verdict(float(right), right, reason, {"answer_found": 1.0}, NAME)

    async def _equal(self, reference: str, answer: str) -> bool:
        known = compare(reference, answer)
        if known is not None:
            return known
        return await self._pool.equal(for_algebra(reference), for_algebra(answer))


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")
