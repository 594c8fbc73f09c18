"""What a commit learned from: its episodes, the answers in them, and the weight of each turn in the updates."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import sqlalchemy as sa

from astune.store.answers import chunks
from astune.store.tables import episode_messages, episodes, requests, samples
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
    """The share of a turn in the updates of a commit. `turn_id` is None for what the model did not say itself: a
    correction. `weight` is that of each of its `tokens`."""

    episode_id: str
    turn_id: int | None
    method: str
    advantage: float
    weight: float
    tokens: int


def write(connection: sa.Connection, commit: int, told: Iterable[LearnedEpisode], turns: Iterable[LearnedTurn]) -> None:
    """Belongs into the transaction that makes the version."""
    of_episode = [(each, _columns(each, commit)) for each in told]
    _insert(connection, episodes, [columns for _, columns in of_episode])
    links = [
        dict[str, object](episode_id=each.episode_id, msg_id=msg_id)
        for each, _ in of_episode
        for msg_id in dict.fromkeys(each.msg_ids)
    ]
    _insert(connection, episode_messages, links)
    _insert(connection, samples, [{"commit_id": commit, **vars(turn)} for turn in turns])


def trained_turns(connection: sa.Connection, msg_ids: Iterable[str]) -> set[int]:
    """The numbers of the turns that any commit has trained, of these answers' conversations."""
    found: set[int] = set()
    for some in chunks(msg_ids):
        conversations = sa.select(requests.c.conversation_id).where(requests.c.msg_id.in_(some))
        found.update(
            connection.scalars(
                sa.select(samples.c.turn_id)
                .join(said, said.c.id == samples.c.turn_id)
                .join(requests, requests.c.msg_id == said.c.msg_id)
                .where(requests.c.conversation_id.in_(conversations))
            )
        )
    return found


@dataclass(frozen=True)
class TrainedEpisode:
    """An episode that a version was made from, by rewards."""

    episode_id: str
    commit: int
    task_id: str | None
    reward: float
    msg_ids: tuple[str, ...]


def trained_by_rewards(connection: sa.Connection, most: int) -> list[TrainedEpisode]:
    """The last so many, oldest first."""
    by_reward = sa.select(samples.c.episode_id).where(samples.c.method == "policy")
    rows = connection.execute(
        sa.select(episodes.c.episode_id, episodes.c.commit_id, episodes.c.task_id, episodes.c.reward)
        .where(episodes.c.state == "trained", episodes.c.reward.is_not(None), episodes.c.episode_id.in_(by_reward))
        .order_by(episodes.c.commit_id.desc(), episodes.c.episode_id.desc())
        .limit(most)
    ).all()
    linked = sa.select(episode_messages.c.episode_id, episode_messages.c.msg_id, requests.c.number)
    linked = linked.join(requests, requests.c.msg_id == episode_messages.c.msg_id)
    links: dict[str, list[str]] = {}
    for some in chunks(row.episode_id for row in rows):
        chosen = linked.where(episode_messages.c.episode_id.in_(some))
        for link in connection.execute(chosen.order_by(requests.c.conversation_id, requests.c.number)):
            links.setdefault(link.episode_id, []).append(link.msg_id)
    return [
        TrainedEpisode(row.episode_id, row.commit_id, row.task_id, row.reward, tuple(links[row.episode_id]))
        for row in reversed(rows)
        if row.episode_id in links
    ]


def _columns(each: LearnedEpisode, commit: int) -> dict[str, object]:
    return {name: value for name, value in vars(each).items() if name != "msg_ids"} | {"commit_id": commit}


def _insert(connection: sa.Connection, table: sa.Table, rows: list[dict[str, object]]) -> None:
    if rows:
        connection.execute(table.insert(), rows)
