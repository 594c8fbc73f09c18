"""Recorded episodes as examples: to imitate, good against bad attempts at one task, or each by itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from astune.errors import TaskError
from astune.examples.example import LeftOutExamples, TrainingExample
from astune.monitor.episodes import EpisodeRecord, episode_from_row
from astune.support.statistics import exceeds, pair_apart
from astune.types import Episode, Timeline

TEXT_ALONE = ("inexact", "no_logprobs")
"""`Turn.excluded` of answers whose source gave no token ids, or no log-probabilities."""


def read_recorded(place: str, row: Mapping[str, Any]) -> EpisodeRecord:
    """Read the episode in a line. Raises `TaskError` that begins with `place`."""
    try:
        return episode_from_row(row)
    except (KeyError, TypeError, ValueError) as error:
        raise TaskError(f"{place}: not an episode that ASTune recorded ({type(error).__name__}: {error})") from error


def rows_to_imitate(episode: Episode, place: str, left_out: LeftOutExamples) -> tuple[Timeline, ...]:
    """List the rows of an episode that carry loss when it is imitated. That needs no log-probabilities, and answers of
    a model that gave text alone stand in the tokens with which ours would say them: so those that RL leaves out for
    that carry loss here."""
    lines = tuple(
        replace(
            line,
            spans=tuple(
                replace(span, trainable=True) if episode.turns[span.turn].excluded in TEXT_ALONE else span
                for span in line.spans
            ),
        )
        for line in episode.timelines
    )
    return _with_loss(episode, lines, place, left_out)


def _with_loss(
    episode: Episode, lines: tuple[Timeline, ...], place: str, left_out: LeftOutExamples
) -> tuple[Timeline, ...]:
    rows = tuple(line for line in lines if line.trained_tokens)
    if not rows:
        reasons = Counter(turn.excluded for turn in episode.turns if turn.excluded is not None)
        why = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
        left_out.add("in which no answer can be trained", place, f"answers: {why}" if why else "no answers")
    return rows


@dataclass(frozen=True)
class _Attempt:
    reward: float
    passed: bool | None
    place: str
    rows: tuple[Timeline, ...]


@dataclass
class JudgedAttempts:
    """Attempts at tasks as they are read; examples of all when all are read."""

    left_out: LeftOutExamples
    _groups: dict[tuple[int, str, str], list[_Attempt]] = field(default_factory=dict)

    def add(self, record: EpisodeRecord, place: str) -> None:
        """Takes an episode, unless nobody judged it or nothing in it can be trained."""
        episode = record.episode
        if episode.verdict is None:
            self.left_out.add("that nobody judged", place)
        elif rows := _with_loss(episode, episode.timelines, place, self.left_out):
            group = self._groups.setdefault((record.step, record.phase, episode.task.task_id), [])
            group.append(_Attempt(episode.verdict.reward, episode.verdict.passed, place, rows))

    def pairs(self) -> Iterator[TrainingExample]:
        """Pair the attempts at one task in one step: the best with the worst, the second best with the second worst and
        so on, as long as their rewards differ."""
        for group in self._groups.values():
            pairs = pair_apart(group, lambda each: each.reward)
            for best, worst in pairs:
                liked = (True,) * len(best.rows) + (False,) * len(worst.rows)
                yield TrainingExample(best.rows + worst.rows, best.place, liked)
            ranked = sorted(group, key=lambda each: -each.reward)
            for left in ranked[len(pairs) : len(ranked) - len(pairs)]:
                self._leave_out(left, len(group), "; kto learns from single ones")

    def one_by_one(self) -> Iterator[TrainingExample]:
        """Every attempt, good if it passed; where the judge does not speak of success, good if its reward is above the
        mean of its group and bad if below."""
        for group in self._groups.values():
            mean = sum(each.reward for each in group) / len(group)
            for each in group:
                good, bad = each.passed, each.passed is False
                if each.passed is None:
                    good, bad = exceeds(each.reward, mean), exceeds(mean, each.reward)
                if good or bad:
                    yield TrainingExample(each.rows, each.place, (bool(good),) * len(each.rows))
                else:
                    self._leave_out(each, len(group), ", and which the judge calls no success or failure")

    def _leave_out(self, attempt: _Attempt, attempts: int, if_alone: str) -> None:
        if attempts == 1:
            cause = f"that are the only attempt at their task in their step{if_alone}"
        else:
            cause = "whose reward is that of the attempts that they are compared with"
        self.left_out.add(cause, attempt.place)
