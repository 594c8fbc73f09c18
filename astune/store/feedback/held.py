"""Feedback that waits for somebody to look at it."""

from __future__ import annotations

from collections.abc import Collection

import sqlalchemy as sa

from astune.config.online import FeedbackConfig
from astune.errors import StoreError
from astune.store.feedback.rows import Row, load, note, write_state
from astune.store.feedback.states import decide_again, lock
from astune.store.tables import feedback


def held(connection: sa.Connection) -> list[Row]:
    """All of it, the oldest first."""
    return load(connection, feedback.c.state == "held")


def chosen(connection: sa.Connection, numbers: Collection[int], author: str | None) -> list[Row]:
    """What is held, of these numbers or of that author. Raises StoreError where there is none."""
    lock(connection)
    rows = held(connection)
    unknown = sorted(set(numbers) - {row.id for row in rows})
    if unknown:
        raise StoreError(f"no feedback {unknown[0]} is held; `astune online held` lists what is")
    found = [row for row in rows if row.id in numbers or (author is not None and row.author == author)]
    if not found:
        raise StoreError(f"no feedback of {author!r} is held; `astune online held` lists what is")
    return found


def accept(connection: sa.Connection, rows: Collection[Row], rules: FeedbackConfig, now: float) -> list[Row]:
    """It counts, unless a later word took its place or its answers were trained meanwhile. As it stands then."""
    for row in rows:
        note(connection, row, "feedback_accepted", now, "command")
    decide_again(connection, list(rows), rules, now, "command")
    return load(connection, feedback.c.id.in_([row.id for row in rows]))


def refuse(connection: sa.Connection, rows: Collection[Row], now: float) -> list[Row]:
    """It never counts, also when it is sent again."""
    for row in rows:
        write_state(connection, row, "refused", "refused by hand", now, "command")
    return load(connection, feedback.c.id.in_([row.id for row in rows]))
