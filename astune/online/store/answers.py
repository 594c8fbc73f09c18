"""Answers that feedback is about: their client and user, the answers before them, and which are trained already."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import sqlalchemy as sa

from astune.store.tables import episode_messages, episodes, requests, turns

Value = TypeVar("Value")
MOST_VALUES = 1000
"""Values in one statement; a database has a limit."""


@dataclass(frozen=True)
class KnownAnswer:
    """The columns of a recorded request that feedback needs."""

    msg_id: str
    conversation_id: str
    number: int
    exchange: str
    follows: str | None
    client: str
    user: str | None
    task_id: str | None
    run_id: str | None
    answered: float
    after: str | None = None
    """Digest of the conversation up to the answer that it follows; None if it is the first."""
    histories: frozenset[str] = frozenset()
    """Digests of the conversation up to and with each of its own answers."""


def is_trained(msg_id: sa.Column[str]) -> sa.Exists:
    """A condition: the answer in that column belongs to an episode from which a version was made."""
    of_episode = episodes.c.episode_id == episode_messages.c.episode_id
    return sa.exists().where(episode_messages.c.msg_id == msg_id, of_episode, episodes.c.state == "trained")


# Made once: to make a statement takes longer than to run it.
_SOME: sa.BindParameter[str] = sa.bindparam("some", expanding=True)
_BEFORE = turns.alias("before")
_KNOWN = (
    sa.select(
        *(requests.c[name] for name in KnownAnswer.__dataclass_fields__ if name in requests.c),
        _BEFORE.c.history.label("after"),
        turns.c.history,
    )
    .outerjoin(turns, turns.c.msg_id == requests.c.msg_id)
    .outerjoin(_BEFORE, (_BEFORE.c.msg_id == requests.c.follows) & (_BEFORE.c.choice == requests.c.follows_choice))
    .where(requests.c.exchange.in_(sa.select(requests.c.exchange).where(requests.c.msg_id.in_(_SOME))))
)
_TRAINED = sa.select(requests.c.msg_id).where(requests.c.msg_id.in_(_SOME), is_trained(requests.c.msg_id))


def chunks(values: Iterable[Value], most: int = MOST_VALUES) -> Iterator[list[Value]]:
    """The distinct values in their order, `most` at a time."""
    distinct = list(dict.fromkeys(values))
    for start in range(0, len(distinct), most):
        yield distinct[start : start + most]


def find_of(
    connection: sa.Connection, values: Iterable[Value], select: Callable[[list[Value]], sa.Select[Any]]
) -> set[Any]:
    """Collect the first column of what `select` finds for some of the values, over all of them."""
    found: set[Any] = set()
    for some in chunks(values):
        found.update(connection.scalars(select(some)))
    return found


def load_answers(connection: sa.Connection, msg_ids: Iterable[str]) -> dict[str, KnownAnswer]:
    """Load the answers of every exchange that one of `msg_ids` belongs to, by msg_id. Unknown ids are left out."""
    found: dict[str, KnownAnswer] = {}
    for some in chunks(msg_ids):
        histories: dict[str, set[str]] = {}
        for *row, history in connection.execute(_KNOWN, {"some": some}):
            histories.setdefault(row[0], set()).add(history)
            found[row[0]] = KnownAnswer(*row)
        for msg_id, digests in histories.items():
            found[msg_id] = replace(found[msg_id], histories=frozenset(digests - {None}))
    return found


def find_judged(known: Mapping[str, KnownAnswer], msg_ids: Iterable[str]) -> tuple[str, ...]:
    """Find the answers that feedback on `msg_ids` judges, in the order in which they were given: each known one of
    `msg_ids`, and the answers before it in its exchange.

    Unnamed runs that say the same share conversations. So a named answer replaces an unnamed one with the same history.
    If the feedback names both the first call of an exchange and the call after it, it names all calls of its run, and
    unnamed answers belong to another run.
    """
    named = {msg_id: known[msg_id] for msg_id in msg_ids if msg_id in known}
    same = {history: answer for answer in named.values() for history in answer.histories}

    def before(answer: KnownAnswer) -> KnownAnswer | None:
        found = known.get(answer.follows or "")
        if found is None or found.exchange != answer.exchange:
            return None
        return found if found.msg_id in named else same.get(answer.after or "", found)

    led = [found for answer in named.values() if (found := before(answer)) is not None and found.msg_id in named]
    whole = any(before(answer) is None for answer in led)
    judged: dict[str, KnownAnswer] = {}
    for answer in sorted(
        named.values(), key=lambda each: (each.answered, each.conversation_id, each.number, each.msg_id)
    ):
        way: dict[str, KnownAnswer] = {}
        step: KnownAnswer | None = answer
        while step is not None and step.msg_id not in judged and step.msg_id not in way:
            way[step.msg_id] = step
            step = before(step)
        judged |= {msg_id: way[msg_id] for msg_id in reversed(way) if msg_id in named or not whole}
    return tuple(judged)


def find_trained(connection: sa.Connection, msg_ids: Iterable[str]) -> set[str]:
    """Find the answers among `msg_ids` that belong to an episode from which a version was made."""
    found: set[str] = set()
    for some in chunks(msg_ids):
        found.update(connection.scalars(_TRAINED, {"some": some}))
    return found


def conversations_of(known: Mapping[str, KnownAnswer], msg_ids: Sequence[str]) -> list[str]:
    return sorted({known[msg_id].conversation_id for msg_id in msg_ids if msg_id in known})
