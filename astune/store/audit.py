"""A line for every decision: who took it, what it was, and about what."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import sqlalchemy as sa

from astune.store.tables import audit

Role = Literal["serve", "train", "command"]
_INSERT = audit.insert()


@dataclass(frozen=True)
class AuditLine:
    number: int
    time: float
    """Seconds since 1970."""
    role: str
    what: str
    subject: str | None
    details: dict[str, Any]


def say(
    connection: sa.Connection, role: Role, what: str, subject: str | None, *, now: float | None = None, **details: Any
) -> None:
    """Write a line: `say(connection, "serve", "feedback_held", "chatcmpl-1", reason="rate", user="ana")`. `now` is
    that of a caller with a clock of its own.

    `subject` is the id of what it is about. Ids and names of people stand in `details` as whole texts or keys, inside a
    sentence in quotes, and nothing that people wrote does: so `retention.delete` finds every line about them.
    """
    when = time.time() if now is None else now
    connection.execute(_INSERT, {"time": when, "role": role, "what": what, "subject": subject, "details": details})


def lines(
    connection: sa.Connection,
    *,
    subjects: list[str] | None = None,
    what: str | None = None,
    since: float | None = None,
) -> Iterator[AuditLine]:
    """The lines in the order they were written; of these `subjects`, of this kind, not before `since`."""
    chosen = sa.select(audit).order_by(audit.c.id)
    if subjects is not None:
        chosen = chosen.where(audit.c.subject.in_(subjects))
    if what is not None:
        chosen = chosen.where(audit.c.what == what)
    if since is not None:
        chosen = chosen.where(audit.c.time >= since)
    for row in connection.execute(chosen):
        yield AuditLine(row.id, row.time, row.role, row.what, row.subject, row.details)
