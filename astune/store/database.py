"""A database and its transactions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from alembic import command
from alembic.config import Config as AlembicConfig

from astune.errors import StoreError

WAIT_SECONDS = 30.0
"""How long a transaction waits for another one's lock."""
MIGRATIONS = Path(__file__).parent / "migrations"


class Database:
    """Where rows stand. Any thread may use it; each transaction has a connection of its own.

    Several processes may have the same one open. On SQLite one transaction writes at a time, the others wait.
    """

    def __init__(self, url: str) -> None:
        self.url = sa.make_url(url)
        options: dict[str, Any] = {"pool_pre_ping": True}
        if self.is_sqlite:
            options = {"connect_args": {"timeout": WAIT_SECONDS, "check_same_thread": False}}
        self.engine = sa.create_engine(self.url, **options)
        if self.is_sqlite:
            sa.event.listen(self.engine, "connect", _prepare)
            sa.event.listen(self.engine, "begin", _begin)

    @property
    def is_sqlite(self) -> bool:
        return self.url.get_backend_name() == "sqlite"

    @contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """A transaction: committed at the end of the block, rolled back if that raises."""
        with self.engine.connect().execution_options(writes=True) as connection, connection.begin():
            yield connection

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """A transaction that sees one state of the database and changes nothing."""
        with self.engine.connect() as connection, connection.begin() as transaction:
            yield connection
            transaction.rollback()

    def close(self) -> None:
        self.engine.dispose()


def open_database(url: str) -> Database:
    """The database at `url`, with the tables of this version of ASTune. `url` is SQLAlchemy's: `sqlite:///online.db`,
    `postgresql+psycopg://user@host/name`.

    Raises:
        StoreError: it cannot be reached, or a newer version of ASTune has upgraded it.
    """
    try:
        database = Database(url)
        upgrade(database)
    except (sa.exc.SQLAlchemyError, ImportError, OSError) as error:
        raise StoreError(f"the database {shown(url)} cannot be used: {error}") from error
    return database


def upgrade(database: Database) -> None:
    """Bring the tables to this version; processes that start together do it once."""
    config = AlembicConfig()
    config.set_main_option("script_location", str(MIGRATIONS))
    if database.is_sqlite and database.url.database:
        Path(database.url.database).parent.mkdir(parents=True, exist_ok=True)
    with database.writing() as connection:
        if not database.is_sqlite:
            connection.execute(sa.text("SELECT pg_advisory_xact_lock(4927)"))
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def shown(url: str) -> str:
    """The address without its password."""
    try:
        return sa.make_url(url).render_as_string(hide_password=True)
    except sa.exc.ArgumentError:
        return repr(url)


def _prepare(connection: Any, _: Any) -> None:
    connection.isolation_level = None  # or Python's driver begins transactions where it sees fit
    connection.execute(f"PRAGMA busy_timeout={int(1000 * WAIT_SECONDS)}")
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute("PRAGMA foreign_keys=ON")


def _begin(connection: sa.Connection) -> None:
    # A transaction that begins by reading and goes on to write fails at once where another one writes: it cannot wait.
    connection.exec_driver_sql("BEGIN IMMEDIATE" if connection.get_execution_options().get("writes") else "BEGIN")
