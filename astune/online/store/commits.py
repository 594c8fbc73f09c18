"""Commits: who asked for one, what it trains on, and its state.

asked      waits for a trainer
training   a trainer works on it; after the trainer was killed it is `asked` again
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
"""Values of `by` for commits that somebody asked for; the others come from the trainer's own rules."""


@dataclass(frozen=True)
class Wanted:
    """The answers that a commit is to train on: all that wait, unless one of these limits them. `time_threshold`: only
    answers given before that time, in seconds since 1970."""

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
    """Ask for a commit; return its number. If one with the same scope waits already, no second one is made; an explicit
    request then replaces who asked and when."""
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
    """Load the commits in that state, in the order in which they were asked for."""
    return _rows(connection, commits.select().where(commits.c.state == state).order_by(commits.c.id))


def by_state(connection: sa.Connection) -> dict[str, int]:
    """Count the commits in each state."""
    counted = sa.select(commits.c.state, sa.func.count()).group_by(commits.c.state)
    found = {str(state): int(count) for state, count in connection.execute(counted)}
    return {state: found.get(state, 0) for state in COMMIT_STATES}


def recent(connection: sa.Connection, most: int) -> list[CommitRow]:
    """Load the last `most` commits, oldest first."""
    return _rows(connection, commits.select().order_by(commits.c.id.desc()).limit(most))[::-1]


def after(connection: sa.Connection, number: int) -> list[CommitRow]:
    """Load the commits after commit `number`, oldest first."""
    return _rows(connection, commits.select().where(commits.c.id > number).order_by(commits.c.id))


def begin(connection: sa.Connection, row: CommitRow, base_version: int, now: float) -> float:
    """Note that a trainer works on it from now on. Return when work on it first began, maybe in a trainer that was
    killed."""
    began = row.began if row.began is not None else now
    values = {"state": "training", "base_version": base_version, "began": began}
    connection.execute(commits.update().where(commits.c.id == row.number).values(values))
    return began


def put_back(connection: sa.Connection) -> list[int]:
    """Let the commits of a trainer that has ended wait again; return their numbers. Only the holder of the lease of
    training may call this."""
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
