"""Recorded answers as the episodes and groups that training knows."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from astune.context_tracker.merge import TurnForest
from astune.online.store.recorded import RecordedAnswer
from astune.rollout.verdict import USERS
from astune.types import Episode, StopReason, Task, ToolUse, Turn, Verdict
from astune.workflow.tool_log import ToolLog

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
    def trained(self) -> set[int]:
        """The numbers of the turns that it trains."""
        return {number for number, turn in zip(self.turn_ids, self.episode.turns, strict=True) if turn.trainable}

    @property
    def why_not(self) -> str:
        """The reason why none of its turns is trained."""
        reasons = [turn.excluded for turn in self.episode.turns if turn.excluded is not None]
        return reasons[-1] if reasons else "no_turns"


def episode_of(
    episode_id: str, answers: Sequence[RecordedAnswer], reward: float | None, used: Set[int], task_id: str | None = None
) -> OnlineEpisode:
    """The answers as one episode. Turns whose numbers are in `used` are context only: what was trained
    (`OnlineEpisode.trained`) is to be added, so that no turn is trained twice. An answer that goes on from another
    run's (`astune.online.store.answers`) follows the one with the same history."""
    turns: list[Turn] = []
    turn_ids: list[int] = []
    places: dict[tuple[str | None, str | None], int] = {}
    same: dict[str | None, int] = {}
    for answer in answers:
        follows = places.get((answer.heading.follows, answer.after), same.get(answer.after))
        for history, (turn_id, turn) in zip(answer.histories, answer.turns, strict=True):
            places[answer.heading.msg_id, history] = same[history] = len(turns)
            seen = turn.trainable and turn_id in used
            turns.append(
                replace(turn, follows=follows, call=len(turns), excluded=TRAINED_BEFORE if seen else turn.excluded)
            )
            turn_ids.append(turn_id)
    forest = TurnForest(turns)
    episode = Episode(
        episode_id=episode_id,
        task=_task(answers, task_id),
        turns=tuple(forest.turns),
        timelines=forest.timelines(),
        stop_reason=StopReason.COMPLETED,
        verdict=None if reward is None else Verdict(reward, judged_by=USERS),
        unique_tokens=forest.unique_tokens,
        tools=_tool_uses(answers),
    )
    return OnlineEpisode(episode, tuple(turn_ids), tuple(answers))


def exclude_other_temperatures(temperature: float, answers: Mapping[str, RecordedAnswer]) -> dict[str, RecordedAnswer]:
    """The answers, for a trainer that takes all tokens at one temperature: turns at another are context only."""

    def exclude(turn: Turn) -> Turn:
        other = turn.trainable and turn.temperature != temperature
        return replace(turn, excluded=OTHER_TEMPERATURE) if other else turn

    return {
        msg_id: replace(answer, turns=tuple((number, exclude(turn)) for number, turn in answer.turns))
        for msg_id, answer in answers.items()
    }


def _tool_uses(answers: Sequence[RecordedAnswer]) -> Mapping[str, ToolUse]:
    """The results of tool calls that came between the answers."""
    log = ToolLog()
    for answer in answers:
        roles = [message.get("role") for message in answer.messages]
        new = answer.messages[len(roles) - 1 - roles[::-1].index("assistant") :] if "assistant" in roles else ()
        if new:
            log.add_calls(new[0])
        log.add_request(new, answer.tools)
    return log.uses


def _task(answers: Sequence[RecordedAnswer], task_id: str | None) -> Task:
    """The task of an episode. `astune.algorithm.baseline_by` may name `agent`, `client`, `model` and `user`; `user` is
    a digest, as baselines are kept with each version."""
    last = answers[-1]
    kinds = {name: getattr(last.heading, name) or "" for name in ("agent", "client", "model")}
    kinds["user"] = hashlib.sha256((last.heading.user or "").encode()).hexdigest()
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
