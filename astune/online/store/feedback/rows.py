"""Rows of the table `feedback` with their messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import sqlalchemy as sa

from astune.online.store import audit
from astune.online.store.answers import chunks
from astune.store.tables import feedback, feedback_messages

JUDGE = "judge:"
"""The names of authors that are judges begin so."""
ACCEPTED = "accepted by hand"
"""The reason of feedback that a person has accepted: no rule holds it again."""
RATER = "rater:"
"""The names of authors whom the operator asked to compare answers begin so: they are no users."""


@dataclass(frozen=True)
class FeedbackRow:
    """`messages` are (msg_id, place); the other fields are columns."""

    id: int
    received: float
    author: str
    client: str
    body: str
    kind: str
    name: str
    value: float | None
    comment: str | None
    correction: str | None
    task_id: str | None
    run_id: str | None
    fingerprint: str
    target: str
    state: str
    reason: str | None
    messages: tuple[tuple[str, str], ...] = ()
    hint: str | None = None

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(msg_id for msg_id, _ in self.messages)

    @property
    def part(self) -> str:
        """The kind of feedback that later feedback of the same author replaces: score, correction or preference."""
        return self.kind if self.kind in ("correction", "preference") else "score"

    @property
    def age(self) -> tuple[float, str]:
        """A key to sort by, the oldest first; no two are equal."""
        return (self.received, self.fingerprint)

    @property
    def of_judge(self) -> bool:
        return self.author.startswith(JUDGE)

    @property
    def user(self) -> str:
        """The author, if that is a named user, else empty."""
        return user_of(self.author, self.client)


def user_of(author: str, client: str) -> str:
    """The author, if that is a named user, else empty.

    >>> user_of("ana", "shop"), user_of("shop", "shop"), user_of("judge:math", "shop"), user_of("rater:bo", "shop")
    ('ana', '', '', '')
    """
    return "" if author == client or author.startswith((JUDGE, RATER)) else author


_COLUMNS = tuple(one.name for one in fields(FeedbackRow) if one.name != "messages")
# Made once: to make a statement takes longer than to run it.
_ROWS = sa.select(*(feedback.c[name] for name in _COLUMNS))
_INSERT = feedback.insert()
_INSERT_MESSAGE = feedback_messages.insert()
_UPDATE = feedback.update().where(feedback.c.id == sa.bindparam("its_id"))
_MESSAGES = sa.select(feedback_messages).where(
    feedback_messages.c.feedback_id.in_(sa.bindparam("numbers", expanding=True))
)


def load(connection: sa.Connection, *where: sa.ColumnElement[bool], **values: object) -> list[FeedbackRow]:
    """Load the rows that fulfil the conditions, the oldest first. `values` are the parameters in `where`."""
    chosen = connection.execute(_ROWS.where(*where), values)
    found: dict[int, dict[str, Any]] = {row.id: dict(row._mapping) for row in chosen}
    messages: dict[int, list[tuple[str, str]]] = {number: [] for number in found}
    for some in chunks(found):
        for row in connection.execute(_MESSAGES, {"numbers": some}):
            messages[row.feedback_id].append((row.msg_id, row.place))
    rows = [FeedbackRow(**row, messages=tuple(sorted(messages[number]))) for number, row in found.items()]
    return sorted(rows, key=lambda row: row.age)


def insert(connection: sa.Connection, row: FeedbackRow) -> FeedbackRow:
    """Insert a row; return it with its number."""
    values = {name: getattr(row, name) for name in _COLUMNS if name != "id"}
    (number,) = connection.execute(_INSERT, values).inserted_primary_key or (0,)
    connection.execute(
        _INSERT_MESSAGE,
        [{"feedback_id": number, "msg_id": msg_id, "place": place} for msg_id, place in row.messages],
    )
    return replace(row, id=int(number))


def write_state(
    connection: sa.Connection, row: FeedbackRow, state: str, reason: str | None, now: float, role: audit.Role
) -> None:
    """Write the new state and the target of a row, with an audit line if the state changes. `reason` must not name a
    person."""
    connection.execute(_UPDATE, {"its_id": row.id, "target": row.target, "state": state, "reason": reason})
    if state != row.state:
        note(connection, row, f"feedback_{state}", now, role, before=row.state, reason=reason)


def hold(
    connection: sa.Connection, which: Sequence[sa.ColumnElement[bool]], reason: str, now: float, role: audit.Role
) -> None:
    """Hold the counting feedback that fulfils the conditions, unless a person has accepted it."""
    for row in load(connection, *which, feedback.c.state == "counts"):
        if row.reason != ACCEPTED:
            write_state(connection, row, "held", reason, now, role)


def note(
    connection: sa.Connection, row: FeedbackRow, what: str, now: float, role: audit.Role, **details: str | None
) -> None:
    """Write an audit line about the feedback. Its subject is the first answer that the feedback names."""
    about = {"feedback": row.id, "author": row.author, "messages": list(row.ids)}
    audit.say(connection, role, what, row.ids[0], now=now, **about, **details)
