"""Right and wrong answers to try judges and workflows on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from astune.config.judges import TaskJudgeConfig
from astune.task_judge.math_answer import normalise, reference_answer
from astune.types import Task

MATH_JUDGE = "MathAnswerAsJudge"
BY_FORMAT: Mapping[str, str] = {
    "auto": "\\boxed{{{}}}",
    "boxed": "\\boxed{{{}}}",
    "answer_tag": "<answer>{}</answer>",
    "hashes": "#### {}",
    "the_answer_is": "The answer is {}.",
    "plain": "{}",
}
"""How an answer is written for each `astune.task_judge.answer_format`, as a pattern of `str.format`."""

OTHERS = ("Answer: {}", '{{"answer": "{}"}}')
"""Further forms that judges of users ask for."""

NO_ANSWER: Mapping[str, str | None] = {
    "an empty answer": "",
    '"I don\'t know"': "I don't know.",
    "an attempt that ran out of turns": None,
}
"""None is an episode without an output (`episode.output is None`)."""


def wordings(config: TaskJudgeConfig) -> list[str]:
    """Patterns to try: the one of the format, or for a judge of the user's own all there are."""
    if config.judge_protocol == MATH_JUDGE:
        return [BY_FORMAT[config.answer_format]]
    return list(dict.fromkeys(["{}", *reversed(list(BY_FORMAT.values())), *OTHERS]))


def right_answer(task: Task, wording: str) -> str:
    """The reference answer in words: all of it where it stands alone, else what it says at its end.

    >>> right_answer(Task("1", "2 + 2?", answer="2 and 2 are 4\\n#### 4"), "The answer is {}.")
    'The answer is 4.'
    """
    answer = task.answer or ""
    return answer if wording == "{}" else wording.format(reference_answer(answer))


def wrong_answer(task: Task, others: Iterable[Task], wording: str) -> str:
    """The right answer of another task, in the same words; a number that hardly any task has if there is none."""
    own = normalise(reference_answer(task.answer or ""))
    for other in others:
        if other.answer is not None and normalise(reference_answer(other.answer)) != own:
            return right_answer(other, wording)
    return wording.format("-987654321")
