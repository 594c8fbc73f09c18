"""Answers that feedback names: whose they are, what led to them, and which of them are trained already."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import sqlalchemy as sa

from astune.store.tables import episode_messages, episodes, requests

Value = TypeVar("Value")
MOST_VALUES = 1000
"""In one statement; a database has a limit."""


@dataclass(frozen=True)
class KnownAnswer:
    """A recorded request, as far as feedback is concerned with it."""

    msg_id: str
    conversation_id: str
    number: int
    exchange: str
    follows: str | None
    client: str
    user: str | None
    task_id: str | None
    run_id: str | None


def is_trained(msg_id: sa.Column[str]) -> sa.Exists:
    """Whether the answer of that column stands in an episode which a version was made from."""
    of_episode = episodes.c.episode_id == episode_messages.c.episode_id
    return sa.exists().where(episode_messages.c.msg_id == msg_id, of_episode, episodes.c.state == "trained")


# Made once: to make a statement takes longer than to run it.
_SOME: sa.BindParameter[str] = sa.bindparam("some", expanding=True)
_KNOWN = sa.select(*(requests.c[name] for name in KnownAnswer.__dataclass_fields__)).where(
    requests.c.exchange.in_(sa.select(requests.c.exchange).where(requests.c.msg_id.in_(_SOME)))
)
_TRAINED = sa.select(requests.c.msg_id).where(requests.c.msg_id.in_(_SOME), is_trained(requests.c.msg_id))


def chunks(values: Iterable[Value]) -> Iterator[list[Value]]:
    """Each once, in the order in which they came, so many at a time as a statement takes."""
    distinct = list(dict.fromkeys(values))
    for start in range(0, len(distinct), MOST_VALUES):
        yield distinct[start : start + MOST_VALUES]


def known_answers(connection: sa.Connection, msg_ids: Iterable[str]) -> dict[str, KnownAnswer]:
    """The answers of every exchange that one of `msg_ids` belongs to, by msg_id. Unknown ids are not in it."""
    found: dict[str, KnownAnswer] = {}
    for some in chunks(msg_ids):
        for row in connection.execute(_KNOWN, {"some": some}):
            found[row.msg_id] = KnownAnswer(**row._mapping)
    return found


def judged_answers(known: Mapping[str, KnownAnswer], msg_ids: Iterable[str]) -> tuple[str, ...]:
    """What feedback on `msg_ids` judges: each of them that is known, and those before it in its exchange. In the order
    of their conversations."""
    judged: dict[str, KnownAnswer] = {}
    for msg_id in msg_ids:
        answer = known.get(msg_id)
        while answer is not None and answer.msg_id not in judged:
            judged[answer.msg_id] = answer
            before = known.get(answer.follows or "")
            answer = before if before is not None and before.exchange == answer.exchange else None
    ordered = sorted(judged.values(), key=lambda answer: (answer.conversation_id, answer.number, answer.msg_id))
    return tuple(answer.msg_id for answer in ordered)


def trained_answers(connection: sa.Connection, msg_ids: Iterable[str]) -> set[str]:
    """Those that stand in an episode which a version was made from."""
    found: set[str] = set()
    for some in chunks(msg_ids):
        found.update(connection.scalars(_TRAINED, {"some": some}))
    return found


def conversations_of(known: Mapping[str, KnownAnswer], msg_ids: Sequence[str]) -> list[str]:
    return sorted({known[msg_id].conversation_id for msg_id in msg_ids if msg_id in known})
