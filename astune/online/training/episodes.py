"""Recorded answers as the episodes and groups that training knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from astune.context_tracker.merge.timeline import TurnForest
from astune.rollout.verdict import USERS
from astune.store.recorded import RecordedAnswer
from astune.types import Episode, StopReason, Task, Turn, Verdict

TRAINED_BEFORE = "trained_before"
"""`Turn.excluded` of a turn that an earlier episode, of this commit or of one before, has trained."""

OTHER_TEMPERATURE = "other_temperature"
"""`Turn.excluded` of a turn that was sampled at a temperature at which the trainer knows no probabilities."""


@dataclass(frozen=True)
class OnlineEpisode:
    """An episode, and of each of its turns the number in the database."""

    episode: Episode
    turn_ids: tuple[int, ...]
    answers: tuple[RecordedAnswer, ...]

    @property
    def trainable(self) -> bool:
        return any(turn.trainable for turn in self.episode.turns)

    @property
    def why_not(self) -> str:
        """Why none of its turns is trained."""
        reasons = [turn.excluded for turn in self.episode.turns if turn.excluded is not None]
        return reasons[-1] if reasons else "no_turns"


def episode_of(
    episode_id: str, answers: Sequence[RecordedAnswer], reward: float | None, used: set[int], task_id: str | None = None
) -> OnlineEpisode:
    """The answers as one episode. Turns whose numbers are in `used` are context only; those that it trains are added.

    Invariant: over all episodes with the same `used`, a turn is trained at most once.
    """
    turns: list[Turn] = []
    turn_ids: list[int] = []
    last_of: dict[str, int] = {}
    for answer in answers:
        follows = last_of.get(answer.heading.follows or "")
        for turn_id, turn in answer.turns:
            seen = turn.trainable and turn_id in used
            turns.append(
                replace(turn, follows=follows, call=len(turns), excluded=TRAINED_BEFORE if seen else turn.excluded)
            )
            turn_ids.append(turn_id)
            if turn.trainable:
                used.add(turn_id)
        last_of[answer.heading.msg_id] = len(turns) - 1
    forest = TurnForest(turns)
    episode = Episode(
        episode_id=episode_id,
        task=_task(answers, task_id),
        turns=tuple(forest.turns),
        timelines=forest.timelines(),
        stop_reason=StopReason.COMPLETED,
        verdict=None if reward is None else Verdict(reward, judged_by=USERS),
        unique_tokens=forest.unique_tokens,
    )
    return OnlineEpisode(episode, tuple(turn_ids), tuple(answers))


def sampled_at(temperature: float, answers: Mapping[str, RecordedAnswer]) -> dict[str, RecordedAnswer]:
    """The answers, for a trainer that takes all tokens at one temperature: turns at another are context only."""

    def known(turn: Turn) -> Turn:
        other = turn.trainable and turn.temperature != temperature
        return replace(turn, excluded=OTHER_TEMPERATURE) if other else turn

    return {
        msg_id: replace(answer, turns=tuple((number, known(turn)) for number, turn in answer.turns))
        for msg_id, answer in answers.items()
    }


def _task(answers: Sequence[RecordedAnswer], task_id: str | None) -> Task:
    """What was asked. The columns that `astune.algorithm.baseline_by` may name are `agent`, `client`, `model` and
    `user`."""
    last = answers[-1]
    kinds = {name: getattr(last.heading, name) or "" for name in ("agent", "client", "model", "user")}
    return Task(task_id or last.heading.msg_id, question_of(last), metadata=kinds)


def question_of(answer: RecordedAnswer) -> str:
    """The text of the last message of a user before it."""
    asked = [message for message in answer.messages if message.get("role") == "user"]
    return _text(asked[-1]) if asked else ""


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n".join(str(part.get("text", "")) for part in parts if isinstance(part, Mapping))
