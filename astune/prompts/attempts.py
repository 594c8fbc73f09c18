"""What is kept of an episode while a search goes on: what was said, what it was worth, and what it cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from astune.clients.usage import Usage
from astune.errors import JudgeError
from astune.task_judge.answer_text import answer_text
from astune.task_judge.llm.shown_attempt import show_task, transcript
from astune.training.model_calls import TimedCall
from astune.types import Episode

MOST_SHOWN = 6000
"""Characters of an episode that a reflection is shown: of a longer one the beginning and the end."""


@dataclass(frozen=True)
class PlayedAttempt:
    """An attempt as a reflection sees it. `reward` is None where nobody judged it; `failures` are tools that failed and
    what they said, `error` what ended the episode early."""

    transcript: str
    answer: str
    reward: float | None
    passed: bool | None
    reason: str = ""
    failures: tuple[str, ...] = ()
    error: str = ""


@dataclass(frozen=True)
class TaskResult:
    """All attempts of a candidate at a task, and the score that they have in the search."""

    task_id: str
    query: str
    attempts: tuple[PlayedAttempt, ...]
    score: float
    spent: Usage

    @property
    def solved(self) -> bool:
        return all(attempt.passed for attempt in self.attempts)

    @property
    def contrast(self) -> tuple[PlayedAttempt, ...]:
        """The best attempt and the worst; one alone where all earned the same."""
        ordered = sorted(self.attempts, key=lambda one: -math.inf if one.reward is None else one.reward)
        worst, best = ordered[0], ordered[-1]
        return (worst,) if best.reward == worst.reward else (best, worst)


def result_of(episodes: Sequence[Episode], lowest: float, spent: Usage) -> TaskResult:
    """The result of a group. An attempt that nobody judged counts as `lowest`, in the search alone."""
    attempts = tuple(map(_show, episodes))
    scores = [lowest if one.reward is None else one.reward for one in attempts]
    task = episodes[0].task
    return TaskResult(task.task_id, show_task(task), attempts, math.fsum(scores) / len(scores), spent)


def usage_of(calls: Sequence[TimedCall], *, own: bool) -> Usage:
    """The usage of calls of the model that plays. That of one's `own` costs nothing."""
    return sum(
        (
            Usage(1, 0, call.prompt_tokens or 0, call.completion_tokens or 0, 0.0 if own else call.cost)
            for call in calls
            if not call.whole  # a line that says how long an episode took
        ),
        Usage(),
    )


def _show(episode: Episode) -> PlayedAttempt:
    verdict, error = episode.verdict, episode.error
    try:
        answer = answer_text(episode.task, episode)
    except JudgeError as problem:
        answer = f"({problem})"
    return PlayedAttempt(
        transcript=shorten(transcript(episode.turns)),
        answer=shorten(answer),
        reward=episode.reward,
        passed=None if verdict is None else verdict.passed,
        reason="" if verdict is None else verdict.reason,
        failures=tuple(
            f"{name}: {use.errors} of {use.calls} calls failed, the first: {use.message}"
            for name, use in episode.tools.items()
            if use.errors
        ),
        error="" if error is None else f"{error.kind} in the {error.stage}: {error.message}",
    )


def shorten(text: str, most: int = MOST_SHOWN) -> str:
    """
    >>> shorten("0123456789", 6)
    '012\\n... 4 characters ...\\n789'
    """
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters ...\n{text[-half:]}"
