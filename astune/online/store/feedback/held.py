"""Feedback that is held until a person has looked at it."""

from __future__ import annotations

from collections.abc import Collection

import sqlalchemy as sa

from astune.config.online import FeedbackConfig
from astune.errors import StoreError
from astune.online.store.feedback.rows import FeedbackRow, load, note, write_state
from astune.online.store.feedback.states import decide_again, lock
from astune.store.tables import feedback


def load_held(connection: sa.Connection) -> list[FeedbackRow]:
    """Load all held feedback, the oldest first."""
    return load(connection, feedback.c.state == "held")


def choose_held(connection: sa.Connection, numbers: Collection[int], author: str | None) -> list[FeedbackRow]:
    """Choose held feedback by its numbers or its author. Raises StoreError if there is none, and for a number that is
    not held."""
    lock(connection)
    rows = load_held(connection)
    unknown = sorted(set(numbers) - {row.id for row in rows})
    if unknown:
        raise StoreError(f"no feedback {unknown[0]} is held; `astune online held` lists what is")
    found = [row for row in rows if row.id in numbers or (author is not None and row.author == author)]
    if not found:
        raise StoreError(f"no feedback of {author!r} is held; `astune online held` lists what is")
    return found


def accept(
    connection: sa.Connection, rows: Collection[FeedbackRow], rules: FeedbackConfig, now: float
) -> list[FeedbackRow]:
    """Let it count, unless later feedback replaces it or its answers were trained meanwhile. Return the rows as they
    are then."""
    for row in rows:
        note(connection, row, "feedback_accepted", now, "command")
    decide_again(connection, list(rows), rules, now, "command")
    return load(connection, feedback.c.id.in_([row.id for row in rows]))


def refuse(connection: sa.Connection, rows: Collection[FeedbackRow], now: float) -> list[FeedbackRow]:
    """Refuse it: it never counts, even if it is sent again. Return the rows as they are then."""
    for row in rows:
        write_state(connection, row, "refused", "refused by hand", now, "command")
    return load(connection, feedback.c.id.in_([row.id for row in rows]))
