"""The data of a commit: its episodes, the answers in them, and the weight of each turn in the updates."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from astune.online.store.answers import chunks, find_of
from astune.online.store.feedback.rows import user_of
from astune.store.tables import episode_messages, episodes, feedback, feedback_messages, requests, samples
from astune.store.tables import turns as said


@dataclass(frozen=True)
class LearnedEpisode:
    """`state` is `trained`, or `left_out` with the reason."""

    episode_id: str
    conversation_id: str
    task_id: str | None
    run_id: str | None
    reward: float | None
    state: str
    reason: str | None
    msg_ids: tuple[str, ...]


@dataclass(frozen=True)
class LearnedTurn:
    """The share of a turn in the updates of a commit. `turn_id` is None for a correction, which the model did not
    sample. `weight` is that of each of its `tokens`."""

    episode_id: str
    turn_id: int | None
    method: str
    advantage: float
    weight: float
    tokens: int


def write(
    connection: sa.Connection, commit: int, learned: Iterable[LearnedEpisode], turns: Iterable[LearnedTurn]
) -> None:
    """Write both, in the transaction that makes the version."""
    rows: list[dict[str, object]] = []
    links: list[dict[str, object]] = []
    for each in learned:
        columns = {name: value for name, value in vars(each).items() if name != "msg_ids"}
        rows.append(columns | {"commit_id": commit})
        links += [{"episode_id": each.episode_id, "msg_id": msg_id} for msg_id in dict.fromkeys(each.msg_ids)]
    _insert(connection, episodes, rows)
    _insert(connection, episode_messages, links)
    _insert(connection, samples, [{"commit_id": commit, **vars(turn)} for turn in turns])


def forget(connection: sa.Connection, commit: int) -> None:
    """Delete what a commit learned from: its version is lost. The answers may then be trained again."""
    connection.execute(samples.delete().where(samples.c.commit_id == commit))
    connection.execute(episodes.delete().where(episodes.c.commit_id == commit))


def leave_out(connection: sa.Connection, commit: int, reason: str) -> None:
    """Let no later commit learn from the episodes of one again, nor from the turns in them."""
    trained = (episodes.c.commit_id == commit, episodes.c.state == "trained")
    connection.execute(episodes.update().where(*trained).values(state="left_out", reason=reason))


def find_trained_turns(connection: sa.Connection, msg_ids: Iterable[str]) -> set[int]:
    """Find the row ids of the turns in these answers' conversations that any commit has trained."""
    trained = (
        sa.select(samples.c.turn_id)
        .join(said, said.c.id == samples.c.turn_id)
        .join(requests, requests.c.msg_id == said.c.msg_id)
    )
    conversation = sa.select(requests.c.conversation_id)

    def select(some: list[str]) -> sa.Select[Any]:
        return trained.where(requests.c.conversation_id.in_(conversation.where(requests.c.msg_id.in_(some))))

    return find_of(connection, msg_ids, select)


@dataclass(frozen=True)
class TrainedEpisode:
    """An episode from whose reward a version was made."""

    episode_id: str
    commit: int
    task_id: str | None
    reward: float
    msg_ids: tuple[str, ...]
    raters: tuple[str, ...]
    """The named users whose scores its reward is made of; an empty name stands for all others."""


def load_trained(connection: sa.Connection, most: int) -> list[TrainedEpisode]:
    """Load the last `most` of them, oldest first."""
    by_reward = sa.select(samples.c.episode_id).where(samples.c.method == "policy")
    rows = connection.execute(
        sa.select(episodes.c.episode_id, episodes.c.commit_id, episodes.c.task_id, episodes.c.reward)
        .where(episodes.c.state == "trained", episodes.c.reward.is_not(None), episodes.c.episode_id.in_(by_reward))
        .order_by(episodes.c.commit_id.desc(), episodes.c.episode_id.desc())
        .limit(most)
    ).all()
    linked = sa.select(episode_messages.c.episode_id, episode_messages.c.msg_id)
    linked = linked.join(requests, requests.c.msg_id == episode_messages.c.msg_id)
    order = requests.c.answered, requests.c.conversation_id, requests.c.number
    links: dict[str, list[str]] = {}
    for some in chunks(row.episode_id for row in rows):
        chosen = linked.where(episode_messages.c.episode_id.in_(some))
        for link in connection.execute(chosen.order_by(*order)):
            links.setdefault(link.episode_id, []).append(link.msg_id)
    raters = _raters(connection, links)
    return [
        TrainedEpisode(
            row.episode_id,
            row.commit_id,
            row.task_id,
            row.reward,
            tuple(links[row.episode_id]),
            tuple(sorted(raters.get(row.episode_id, {""}))),
        )
        for row in reversed(rows)
        if row.episode_id in links
    ]


def _raters(connection: sa.Connection, episode_ids: Iterable[str]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    said_of = (
        sa.select(episode_messages.c.episode_id, feedback.c.author, feedback.c.client)
        .join(feedback_messages, feedback_messages.c.msg_id == episode_messages.c.msg_id)
        .join(feedback, feedback.c.id == feedback_messages.c.feedback_id)
        .where(feedback.c.state == "trained", feedback.c.value.is_not(None))
        .distinct()
    )
    for some in chunks(episode_ids):
        for row in connection.execute(said_of.where(episode_messages.c.episode_id.in_(some))):
            found.setdefault(row.episode_id, set()).add(user_of(row.author, row.client))
    return found


def _insert(connection: sa.Connection, table: sa.Table, rows: list[dict[str, object]]) -> None:
    if rows:
        connection.execute(table.insert(), rows)
