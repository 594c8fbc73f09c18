"""Rows of the table `feedback` with their messages."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import sqlalchemy as sa

from astune.store import audit
from astune.store.answers import chunks
from astune.store.tables import feedback, feedback_messages

JUDGE = "judge:"
"""Authors that are none of the users begin so."""


@dataclass(frozen=True)
class Row:
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

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(msg_id for msg_id, _ in self.messages)

    @property
    def part(self) -> str:
        """What a later word of the same author takes the place of: score, correction or preference."""
        return self.kind if self.kind in ("correction", "preference") else "score"

    @property
    def age(self) -> tuple[float, str]:
        """Smaller is older; no two are equal."""
        return (self.received, self.fingerprint)

    @property
    def of_judge(self) -> bool:
        return self.author.startswith(JUDGE)


_COLUMNS = tuple(one.name for one in fields(Row) if one.name != "messages")
# Made once: to make a statement takes longer than to run it.
_ROWS = sa.select(*(feedback.c[name] for name in _COLUMNS))
_INSERT = feedback.insert()
_INSERT_MESSAGE = feedback_messages.insert()
_UPDATE = feedback.update().where(feedback.c.id == sa.bindparam("its_id"))
_MESSAGES = sa.select(feedback_messages).where(
    feedback_messages.c.feedback_id.in_(sa.bindparam("numbers", expanding=True))
)


def load(connection: sa.Connection, *where: sa.ColumnElement[bool], **values: object) -> list[Row]:
    """Those rows, the oldest first. `values` are those of parameters in `where`."""
    chosen = connection.execute(_ROWS.where(*where), values)
    found: dict[int, dict[str, Any]] = {row.id: dict(row._mapping) for row in chosen}
    messages: dict[int, list[tuple[str, str]]] = {number: [] for number in found}
    for some in chunks(found):
        for row in connection.execute(_MESSAGES, {"numbers": some}):
            messages[row.feedback_id].append((row.msg_id, row.place))
    rows = [Row(**row, messages=tuple(sorted(messages[number]))) for number, row in found.items()]
    return sorted(rows, key=lambda row: row.age)


def insert(connection: sa.Connection, row: Row) -> Row:
    """The row with its number."""
    values = {name: getattr(row, name) for name in _COLUMNS if name != "id"}
    (number,) = connection.execute(_INSERT, values).inserted_primary_key or (0,)
    connection.execute(
        _INSERT_MESSAGE,
        [{"feedback_id": number, "msg_id": msg_id, "place": place} for msg_id, place in row.messages],
    )
    return replace(row, id=int(number))


def write_state(
    connection: sa.Connection, row: Row, state: str, reason: str | None, now: float, role: audit.Role
) -> None:
    """The new state and the target of a row that was in `row.state`, with a line in the audit. `reason` names
    nobody."""
    connection.execute(_UPDATE, {"its_id": row.id, "target": row.target, "state": state, "reason": reason})
    if state != row.state:
        note(connection, row, f"feedback_{state}", now, role, before=row.state, reason=reason)


def note(connection: sa.Connection, row: Row, what: str, now: float, role: audit.Role, **details: str | None) -> None:
    """A line in the audit about that feedback. Its subject is the first answer that the feedback names."""
    about = {"feedback": row.id, "author": row.author, "messages": list(row.ids)}
    audit.say(connection, role, what, row.ids[0], now=now, **about, **details)
