"""The text of a task, and of an attempt at it, that an LLM judge is shown."""

from __future__ import annotations

from dataclasses import dataclass

from astune.config.judges import TaskJudgeConfig
from astune.task_judge.answer_text import answer_text, cut_off
from astune.task_judge.math.final_answer import extract_answer
from astune.task_judge.transcript import conversation, indented, transcript
from astune.types import Episode, StopReason, Task


@dataclass(frozen=True)
class ShownAttempt:
    """An attempt as the judge sees it. `text=None`: it has no answer, `missing` says why."""

    text: str | None
    missing: str = ""


def shown_task(task: Task) -> str:
    """The question, or the conversation that the task starts from."""
    return conversation(task.messages) if len(task.messages) > 1 else task.query


def shown_attempt(task: Task, episode: Episode, config: TaskJudgeConfig) -> ShownAttempt:
    """The final answer, or with `llm.shown: transcript` all that was said and the final answer behind it.

    With an `answer_format` other than "auto" only what that format marks is the answer. An attempt that ended in the
    middle has none. Raises `JudgeError` as `answer_text` does.
    """
    answer = answer_text(task, episode)
    if cut_off(episode, answer):
        return ShownAttempt(None, "the answer was cut off before it ended")
    if config.answer_format != "auto":
        final = extract_answer(answer, config.answer_format)
        if final is None:
            return ShownAttempt(None, f"no answer in the format {config.answer_format!r}")
        answer = final.text
    if config.llm.shown == "transcript" and episode.turns and episode.stop_reason is StopReason.COMPLETED:
        said = indented(answer.strip() or "(none)")
        return ShownAttempt(f"{transcript(episode.turns)}\n\n=== final answer ===\n{said}")
    if not answer.strip():
        return ShownAttempt(None, "no answer")
    return ShownAttempt(answer)
