import threading

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from astune.errors import StoreError
from astune.store.database import Database, open_database
from astune.store.tables import leases, metadata
from astune.store.writer import Writer
from tests.store.databases import database as database
from tests.store.databases import url as url


def test_migrations_make_the_tables(database: Database) -> None:
    with database.reading() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": not database.is_sqlite})
        assert compare_metadata(context, metadata) == []


def test_processes_that_open_a_new_database_together_make_its_tables_once(url: str) -> None:
    failures: list[Exception] = []

    def open_and_close() -> None:
        try:
            open_database(url).close()
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=open_and_close) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def lease(connection: sa.Connection, name: str) -> str:
    connection.execute(leases.insert().values(name=name, holder="me", until=0.0))
    return name


async def test_a_write_that_fails_changes_nothing_and_others_stand(database: Database) -> None:
    writer = Writer(database)
    held = threading.Event()
    first = writer.submit(lambda connection: (held.wait(), lease(connection, "first"))[1])
    others = [writer.submit(lambda connection, name=name: lease(connection, name)) for name in ("a", "a", "b")]
    held.set()  # the three were waiting together
    assert [first.result(), others[0].result(), others[2].result()] == ["first", "a", "b"]
    with pytest.raises(sa.exc.IntegrityError):
        others[1].result()
    writer.close()
    with database.reading() as connection:
        assert sorted(connection.scalars(sa.select(leases.c.name))) == ["a", "b", "first"]


def test_a_closed_writer_has_written_everything_and_takes_no_more(database: Database) -> None:
    writer = Writer(database)
    for number in range(20):
        writer.submit(lambda connection, number=number: lease(connection, str(number)))
    writer.close()
    with database.reading() as connection:
        assert connection.scalar(sa.select(sa.func.count()).select_from(leases)) == 20
    with pytest.raises(StoreError, match="closed"):
        writer.submit(lambda connection: None)


def test_reading_changes_nothing(database: Database) -> None:
    with database.reading() as connection:
        lease(connection, "gone")
    with database.reading() as connection:
        assert connection.scalar(sa.select(sa.func.count()).select_from(leases)) == 0


def test_an_error_says_nothing_of_what_was_to_be_written(database: Database) -> None:
    """It goes into a log, which no deletion reaches."""
    with database.writing() as connection:
        lease(connection, "l")
    with pytest.raises(sa.exc.IntegrityError) as error, database.writing() as connection:
        connection.execute(leases.insert().values(name="l", holder="ana-lopez", until=0.0))
    assert "ana-lopez" not in str(error.value)


def test_an_address_that_is_none_is_an_error_without_its_password() -> None:
    with pytest.raises(StoreError, match=r"nowhere.*cannot be used") as error:
        open_database("postgresql+psycopg://me:secret@127.0.0.1:1/nowhere")
    assert "secret" not in str(error.value)
    with pytest.raises(StoreError):
        open_database("no address")
