"""The answer of an episode as a text."""

from __future__ import annotations

import math
from decimal import Decimal
from numbers import Number, Rational
from typing import Any, Protocol, runtime_checkable

from astune.errors import JudgeError
from astune.types import Episode, StopReason, Task

NO_ANSWER_IN_TIME = (StopReason.MAX_TURNS, StopReason.MAX_TOKENS, StopReason.CONTEXT_OVERFLOW)
"""Ends of an episode that are the agent's own doing: without an output they count as no answer."""


@runtime_checkable
class Message(Protocol):
    """An AgentScope `Msg`, of 1.x and 2.x."""

    def get_text_content(self) -> str | None: ...


def answer_text(task: Task, episode: Episode) -> str:
    """The answer that the workflow returned, as text; empty if the agent gave no answer.

    Raises `JudgeError` for an answer that is neither text nor number nor message, and for an episode that broke off
    without output: neither says anything about the answer.
    """
    if episode.output is None:
        if episode.stop_reason in NO_ANSWER_IN_TIME:
            return ""
        raise JudgeError(f"task {task.task_id!r}: the episode ended with {episode.stop_reason.value} and has no output")
    answer: Any = episode.output.answer
    if answer is None:
        return ""
    if isinstance(answer, str):
        return answer
    if isinstance(answer, float):
        short = format(answer, ".12g")  # 0.1 + 0.2 is 0.3, while 1/6 has all its digits
        return short if math.isclose(float(short), answer, rel_tol=1e-13) else repr(float(answer))
    if isinstance(answer, Rational) and not isinstance(answer, bool):  # str() refuses more than 4,300 digits
        below = "" if answer.denominator == 1 else f"/{Decimal(int(answer.denominator)):f}"
        return f"{Decimal(int(answer.numerator)):f}{below}"
    if isinstance(answer, Number):
        return str(answer)
    if isinstance(answer, Message):
        return answer.get_text_content() or ""
    raise JudgeError(
        f"task {task.task_id!r}: the workflow's answer is a {type(answer).__name__}, expected text, a number or a Msg"
    )


def cut_off(episode: Episode, text: str) -> bool:
    """True if `text` ends with a model's answer that ended at `astune.rollout.max_tokens` or the context's end."""
    if not episode.turns or episode.turns[-1].finish_reason != "length":
        return False
    written = str(episode.turns[-1].response.get("content") or "").strip()
    return bool(written) and text.strip().endswith(written)


def quote(text: str) -> str:
    """Put `text` in quotes for the reason of a verdict, cut to 80 characters."""
    return repr(text if len(text) <= 80 else text[:77] + "...")
