"""Try answers on a judge.

    for judged in by_judge(tasks, config):
        rights, wording = await in_best_words(judged, judged.tasks)   # the reference answers
        wrongs = await try_answers(judged, [(task, "I don't know.") for task in judged.tasks])

No model writes the answers and no workflow runs: an episode is one turn with the answer as its text.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

from astune.check_tasks.judged_tasks import JudgedTasks
from astune.check_tasks.wordings import right_answer, wordings
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.errors import name_error
from astune.rollout.verdict import verdict_or_error
from astune.support.resources import tiny_model_dir
from astune.support.user_code import code_of
from astune.task_judge.judge_base import AT_ONCE
from astune.types import Episode, Span, StopReason, Task, Timeline, Turn, Verdict, WorkflowOutput


@dataclass(frozen=True)
class TriedAnswer:
    """An answer that a judge was asked about: its verdict, or the error that it raised. `text=None` is an episode that
    ran out of turns."""

    task: Task
    text: str | None
    verdict: Verdict | None = None
    error: Exception | None = None

    @property
    def right(self) -> bool:
        """True if the judge takes the answer for right, as far as one can tell without a comparison."""
        return self.verdict is not None and (
            self.verdict.passed if self.verdict.passed is not None else self.verdict.reward >= 1
        )

    @property
    def reward(self) -> float:
        return float("-inf") if self.verdict is None else self.verdict.reward

    @property
    def said(self) -> str:
        """The verdict or the error in words."""
        if self.verdict is None:
            return "nothing" if self.error is None else f"{name_error(self.error)}{code_of(self.error)}"
        return f"reward {self.verdict.reward:g}" + (f" ({self.verdict.reason})" if self.verdict.reason else "")

    def passes_beside(self, right: TriedAnswer) -> bool:
        """True if the answer counts as right, or where rewards have degrees as no less than the right answer."""
        return self.right or self.reward >= right.reward > 0


Answers = Sequence[tuple[Task, str | None]]
OnTried = Callable[[], None]


async def try_answers(judged: JudgedTasks, answers: Answers, on_tried: OnTried = lambda: None) -> list[TriedAnswer]:
    """The answers with what the judge says of them, in their order. Each is the last message of an episode with one
    model call; None is an episode that ran out of turns."""
    limit = asyncio.Semaphore(AT_ONCE)

    async def one(task: Task, text: str | None) -> TriedAnswer:
        async with limit:
            tried = await _try_text(judged, task, text)
        on_tried()
        return tried

    return await asyncio.gather(*(one(task, text) for task, text in answers))


async def _try_text(judged: JudgedTasks, task: Task, text: str | None) -> TriedAnswer:
    """Judge an answer as in a run: the verdict is checked, and the judge has as much time."""
    found = await verdict_or_error(judged.judge, episode_of(task, text), judged.config.seconds)
    return TriedAnswer(task, text, error=found) if isinstance(found, Exception) else TriedAnswer(task, text, found)


def episode_of(task: Task, text: str | None) -> Episode:
    """An episode whose one answer was `text`, in the tokens of the shipped tiny model."""
    question = {"role": "user", "content": task.query}
    prompt = _ids(task.query)
    output = [*_ids(text or ""), *_tiny_format().stop_token_ids[:1]]
    turn = Turn(
        "agent",
        prompt,
        output,
        [-1.0] * len(output),
        policy_version=0,
        finish_reason="stop",
        messages=(question,),
        response={"role": "assistant", "content": text or ""},
    )
    span = Span(0, len(prompt), len(prompt) + len(output), 0, 1.0, True, turn.logprobs)
    return Episode(
        "doctor",
        task,
        (turn,),
        (Timeline("agent", [*prompt, *output], (span,)),),
        StopReason.MAX_TURNS if text is None else StopReason.COMPLETED,
        output=None if text is None else WorkflowOutput(answer=text),
    )


@lru_cache(maxsize=4096)
def _ids(text: str) -> list[int]:
    return _tiny_format().encode(text)


@cache
def _tiny_format() -> ChatFormat:
    return ChatFormat.load(tiny_model_dir())


async def in_best_words(judged: JudgedTasks, tasks: Sequence[Task]) -> tuple[list[TriedAnswer], str]:
    """The right answers, tried in the words in which the judge takes most of them, and those words."""
    best: tuple[list[TriedAnswer], str] | None = None
    for wording in wordings(judged.config):
        tried = await try_answers(judged, [(task, right_answer(task, wording)) for task in tasks])
        if best is None or _merit(tried) > _merit(best[0]):
            best = tried, wording
        if all(one.right for one in tried):
            break
    assert best is not None, "there is always a wording to try"
    return best


def _merit(tried: Sequence[TriedAnswer]) -> tuple[int, float]:
    return sum(one.right for one in tried), sum(max(one.reward, -1e9) for one in tried)
