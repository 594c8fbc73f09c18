"""Transactions that are in each other's way: all are made, none is made twice."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from astune.errors import StoreError
from astune.online.store.requests import RecordedRequest, RecordedTurn, record
from astune.store import tables
from astune.store.database import Database, open_database
from astune.store.writer import Writer
from astune.types import Turn
from tests.store.databases import new_url

SOON = "&options=-c%20deadlock_timeout%3D10ms"
"""PostgreSQL looks for a deadlock after a second; tests need not wait for it."""


def request_of(conversation: str, msg_id: str) -> RecordedRequest:
    turn = Turn("agent", (1,), (2,), (-0.5,), 0, "stop", messages=({"role": "user", "content": "Hi"},))
    return RecordedRequest(
        msg_id=msg_id,
        conversation_id=conversation,
        client="",
        user=None,
        task_id=None,
        run_id=None,
        exchange=msg_id,
        follows=None,
        seen=0,
        agent="agent",
        model="",
        asked=0.0,
        answered=0.0,
        turns=(RecordedTurn(turn, msg_id),),
    )


def recorded(database: Database) -> list[str]:
    with database.reading() as connection:
        return sorted(connection.scalars(sa.select(tables.requests.c.msg_id)))


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[Database, Database]]:
    url = new_url("postgresql", tmp_path) + SOON
    opened = open_database(url), open_database(url)
    yield opened
    for database in opened:
        database.close()


def by_writer(database: Database, work: Callable[[sa.Connection], object]) -> object:
    writer = Writer(database)
    try:
        return writer.submit(work).result()
    finally:
        writer.close()


@pytest.mark.fault(
    "The store",
    "two processes write to the same conversations in opposite order, so that each waits for the other",
    "PostgreSQL undoes one of them, and it is made again: both stand, once",
)
@pytest.mark.parametrize("write", [by_writer, Database.write])
def test_two_that_wait_for_each_other_both_stand(
    two: tuple[Database, Database], write: Callable[[Database, Callable[[sa.Connection], object]], object]
) -> None:
    met = threading.Barrier(2)
    calls: list[str] = []

    def work(name: str, conversations: str) -> Callable[[sa.Connection], object]:
        def both(connection: sa.Connection) -> None:
            calls.append(name)
            first, second = conversations
            record(connection, request_of(first, f"{name} in {first}"))
            if calls.count(name) == 1:
                met.wait()
            record(connection, request_of(second, f"{name} in {second}"))

        return both

    other = threading.Thread(target=write, args=(two[1], work("right", "ba")))
    other.start()
    write(two[0], work("left", "ab"))
    other.join()
    assert recorded(two[0]) == ["left in a", "left in b", "right in a", "right in b"]
    assert len(calls) > 2


@pytest.mark.parametrize("write", [by_writer, Database.write])
def test_a_file_that_is_locked_is_tried_again(
    tmp_path: Path, write: Callable[[Database, Callable[[sa.Connection], object]], object]
) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    mine, others = open_database(url), open_database(url)
    refused = threading.Event()
    sa.event.listen(mine.engine, "connect", lambda raw, _: raw.execute("PRAGMA busy_timeout=0"))
    mine.engine.dispose()
    sa.event.listen(mine.engine, "handle_error", lambda _: refused.set())
    waiting = threading.Thread(target=write, args=(mine, lambda connection: record(connection, request_of("a", "m"))))
    with others.writing() as connection:
        record(connection, request_of("a", "n"))
        waiting.start()
        assert refused.wait(60)
    waiting.join()
    assert recorded(others) == ["m", "n"]
    mine.close()
    others.close()


@pytest.mark.fault(
    "The store",
    "two processes open a new store's file at once: SQLite's switch to a write-ahead log fails at once where another "
    "process is about to write, whatever it was told to wait",
    "it is tried again until the other is done",
)
def test_a_new_file_that_another_one_writes_to_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "store.db"
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    pauses: list[bool] = []

    def paused() -> None:
        pauses.append(other.in_transaction)
        if len(pauses) == 3:
            other.execute("COMMIT")

    monkeypatch.setattr("astune.store.database.pause_after_conflict", paused)
    opened = open_database(f"sqlite:///{file}")
    assert pauses == [True, True, True]
    assert recorded(opened) == []
    with opened.reading() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
    opened.close()
    other.close()


def test_a_new_file_that_stays_locked_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "store.db"
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    monkeypatch.setattr("astune.store.database.WAIT_SECONDS", 0.0)
    with pytest.raises(StoreError, match="database is locked"):
        open_database(f"sqlite:///{file}")
    other.close()


def test_an_error_of_ones_own_is_not_tried_again(two: tuple[Database, Database]) -> None:
    calls: list[int] = []

    def wrong(connection: sa.Connection) -> None:
        calls.append(1)
        connection.execute(sa.text("SELECT 1 / 0"))

    with pytest.raises(sa.exc.DataError):
        two[0].write(wrong)
    assert len(calls) == 1 and not two[0].is_conflict(ValueError())
