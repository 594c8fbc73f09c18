"""The audit log: one line for every decision, with its role, kind and subject."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import sqlalchemy as sa

from astune.store.tables import audit

Role = Literal["serve", "train", "release", "command"]
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
    """Write a line: `say(connection, "serve", "feedback_held", "chatcmpl-1", reason="rate", user="ana")`. `now` is the
    time by the caller's clock, if it has one of its own.

    `subject` is the id of the thing that the line is about. In `details` an id or a name of a person is a whole text or
    key, or stands in quotes within a sentence, and no text that a person wrote is there. So `retention.delete` finds
    every line about a person.
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
    """Read lines in the order in which they were written: about one of `subjects`, of the kind `what`, from `since`
    on. None selects all."""
    chosen = sa.select(audit).order_by(audit.c.id)
    if subjects is not None:
        chosen = chosen.where(audit.c.subject.in_(subjects))
    if what is not None:
        chosen = chosen.where(audit.c.what == what)
    if since is not None:
        chosen = chosen.where(audit.c.time >= since)
    for row in connection.execute(chosen):
        yield AuditLine(*row)
