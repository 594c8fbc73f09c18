"""Recorded answers and what is said of them, for tests of feedback."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from astune.config.online import FeedbackConfig
from astune.online.store.feedback.rows import FeedbackRow, load
from astune.online.store.feedback.states import FeedbackOutcome, FeedbackPart, NewFeedback, add
from astune.store.tables import commits, conversations, episode_messages, episodes, requests
from tests.store.rows import add as add_row


def record(
    connection: sa.Connection,
    conversation: str,
    msg_ids: Sequence[str],
    *,
    client: str = "",
    user: str | None = None,
    exchanges: Sequence[str] | None = None,
    task_id: str | None = None,
    follows: str | None = None,
    answered: float = 0.0,
) -> None:
    """Requests that follow each other, the first `follows`. `exchanges` are theirs; without it all are one."""
    there = sa.select(sa.func.count()).where(requests.c.conversation_id == conversation)
    number = connection.scalar(there) or 0
    if not number:
        add_row(connection, conversations, conversation_id=conversation, client=client, user=user)
    for place, msg_id in enumerate(msg_ids):
        add_row(
            connection,
            requests,
            msg_id=msg_id,
            conversation_id=conversation,
            number=number + place,
            exchange=msg_ids[0] if exchanges is None else exchanges[place],
            follows=msg_ids[place - 1] if place else follows,
            client=client,
            user=user,
            task_id=task_id,
            answered=answered,
        )


def say(
    connection: sa.Connection,
    *said: FeedbackPart | float,
    about: Sequence[str] = ("m",),
    at: float = 0.0,
    author: str = "ana",
    client: str = "",
    rules: FeedbackConfig | None = None,
    **rest: str,
) -> FeedbackOutcome:
    """A number is a reward without a name."""
    parts = tuple(one if isinstance(one, FeedbackPart) else FeedbackPart("number", value=one) for one in said)
    new = NewFeedback(received=at, author=author, client=client, parts=parts, msg_ids=tuple(about), **rest)
    return add(connection, new, rules or FeedbackConfig())


def states(connection: sa.Connection) -> list[str]:
    """Of all feedback, the oldest first."""
    return [row.state for row in rows(connection)]


def rows(connection: sa.Connection) -> list[FeedbackRow]:
    return load(connection)


def train(connection: sa.Connection, msg_ids: Sequence[str], *, state: str = "trained") -> None:
    """An episode of those answers, as a commit makes it."""
    (commit,) = connection.execute(
        commits.insert().values(asked=0.0, by="hand", state="made")
    ).inserted_primary_key or (0,)
    episode = f"episode of {msg_ids}, {commit}"
    connection.execute(episodes.insert().values(episode_id=episode, commit_id=commit, state=state))
    connection.execute(episode_messages.insert(), [{"episode_id": episode, "msg_id": msg_id} for msg_id in msg_ids])
