"""Commits: who asked for one, what it is to train on, and what became of it.

asked      waits for a trainer
training   a trainer is at it; a killed one's goes back to `asked`
made       it made a version
empty      there was nothing to learn, `figures` say why; nothing was changed
failed     `error` says why; nothing was changed
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import sqlalchemy as sa

from astune.store.tables import commits

By = Literal["client", "timer", "episodes", "hand"]
COMMIT_STATES = ("asked", "training", "made", "empty", "failed")
Ended = Literal["made", "empty", "failed"]
EXPLICIT = ("client", "hand")
"""Who asks for a commit on what is there now; the others are the trainer's own rules."""


@dataclass(frozen=True)
class Wanted:
    """What a commit is to train on: all that waits, less what these leave out. `time_threshold`: only answers that were
    given before, in seconds since 1970."""

    task_id: str | None = None
    run_id: str | None = None
    time_threshold: float | None = None


@dataclass(frozen=True)
class CommitRow:
    """Times are in seconds since 1970. `began` is when a trainer first took it up."""

    number: int
    asked: float
    by: By
    wanted: Wanted
    state: str
    base_version: int | None = None
    version: int | None = None
    began: float | None = None
    ended: float | None = None
    figures: Mapping[str, Any] | None = None
    error: str | None = None

    @property
    def explicit(self) -> bool:
        return self.by in EXPLICIT


def ask(connection: sa.Connection, by: By, now: float, wanted: Wanted | None = None) -> int:
    """Ask for a commit; its number. One that waits already and is to train on the same is the one that is meant; it is
    then that of who asked explicitly."""
    wanted = wanted or Wanted()
    for row in with_state(connection, "asked"):
        if row.wanted == wanted:
            if by in EXPLICIT:
                connection.execute(commits.update().where(commits.c.id == row.number).values(by=by, asked=now))
            return row.number
    number = connection.execute(
        commits.insert().values(
            asked=now,
            by=by,
            task_id=wanted.task_id,
            run_id=wanted.run_id,
            time_threshold=wanted.time_threshold,
            state="asked",
        )
    ).inserted_primary_key
    assert number is not None, "the database counts commits"
    return int(number[0])


def with_state(connection: sa.Connection, state: str) -> list[CommitRow]:
    """Those in that state, the first that was asked for first."""
    return _rows(connection, commits.select().where(commits.c.state == state).order_by(commits.c.id))


def by_state(connection: sa.Connection) -> dict[str, int]:
    """How many there are in each state."""
    counted = sa.select(commits.c.state, sa.func.count()).group_by(commits.c.state)
    found = {str(state): int(count) for state, count in connection.execute(counted)}
    return {state: found.get(state, 0) for state in COMMIT_STATES}


def recent(connection: sa.Connection, most: int) -> list[CommitRow]:
    """The last so many, oldest first."""
    return _rows(connection, commits.select().order_by(commits.c.id.desc()).limit(most))[::-1]


def after(connection: sa.Connection, number: int) -> list[CommitRow]:
    """Those after commit `number`, oldest first."""
    return _rows(connection, commits.select().where(commits.c.id > number).order_by(commits.c.id))


def begin(connection: sa.Connection, row: CommitRow, base_version: int, now: float) -> float:
    """A trainer is at it from now on. When it first was, which a trainer that was killed may have said."""
    began = row.began if row.began is not None else now
    values = {"state": "training", "base_version": base_version, "began": began}
    connection.execute(commits.update().where(commits.c.id == row.number).values(values))
    return began


def put_back(connection: sa.Connection) -> list[int]:
    """What a trainer was at that is no more waits again. For who has the lease of training. Their numbers."""
    numbers = [row.number for row in with_state(connection, "training")]
    connection.execute(commits.update().where(commits.c.state == "training").values(state="asked"))
    return numbers


def end(
    connection: sa.Connection,
    number: int,
    state: Ended,
    now: float,
    figures: Mapping[str, Any],
    *,
    version: int | None = None,
    error: str | None = None,
) -> None:
    values = {"state": state, "ended": now, "figures": dict(figures), "version": version, "error": error}
    connection.execute(commits.update().where(commits.c.id == number).values(values))


def _rows(connection: sa.Connection, statement: sa.Select[Any]) -> list[CommitRow]:
    return [_row(row) for row in connection.execute(statement)]


def _row(row: sa.Row[Any]) -> CommitRow:
    return CommitRow(
        row.id,
        row.asked,
        row.by,
        Wanted(row.task_id, row.run_id, row.time_threshold),
        row.state,
        row.base_version,
        row.version,
        row.began,
        row.ended,
        row.figures,
        row.error,
    )
