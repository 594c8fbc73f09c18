"""A database and its transactions."""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from alembic import command
from alembic.config import Config as AlembicConfig
from alembic.script import ScriptDirectory
from alembic.util import CommandError

from astune.errors import StoreError

WAIT_SECONDS = 30.0
"""How long a transaction waits for another one's lock, and a write for a server that is away."""
CONNECT_SECONDS = 10
CONFLICT_PAUSE = 0.02
"""Seconds, at most, before what another transaction was in the way of is begun anew."""
MIGRATIONS = Path(__file__).parent / "migrations"
UPGRADE_LOCK = 4927
"""The number that ASTune's processes agree on in PostgreSQL."""
LOCKED = ("database is locked", "database table is locked", "database schema is locked")
"""What SQLite says where others write; only Python 3.11 has its codes."""
UNUSABLE = (sa.exc.SQLAlchemyError, CommandError, ImportError, OSError)

Result = TypeVar("Result")


class Database:
    """Where rows stand. Any thread may use it; each transaction has a connection of its own.

    Several processes may have the same one open. On SQLite one transaction writes at a time, the others wait. What a
    process was told is committed survives its end by any signal; on SQLite the last moments before a power cut may be
    lost (`synchronous=NORMAL`), but never a part of a transaction.
    """

    def __init__(self, url: str) -> None:
        self.url = _known(url)
        if self.is_sqlite:
            options: dict[str, Any] = {"connect_args": {"timeout": WAIT_SECONDS, "check_same_thread": False}}
        else:
            options = {"pool_pre_ping": True, "connect_args": _patience(self.url)}
        self.engine = sa.create_engine(self.url, **options)
        self._snapshot = {} if self.is_sqlite else {"isolation_level": "REPEATABLE READ"}
        if self.is_sqlite:
            sa.event.listen(self.engine, "connect", _prepare)

    @property
    def is_sqlite(self) -> bool:
        return self.url.get_backend_name() == "sqlite"

    @property
    def shown(self) -> str:
        """The address without its password."""
        return self.url.render_as_string(hide_password=True)

    @contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """A transaction: committed at the end of the block, rolled back if that raises."""
        with self.engine.connect() as connection, connection.begin():
            if self.is_sqlite:  # one that begins by reading and goes on to write fails at once where another writes
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            yield connection
            if (
                self.is_sqlite and not connection.connection.in_transaction
            ):  # COMMIT would do nothing, and say so to none
                raise StoreError(
                    f"the database {self.shown} has rolled a transaction back by itself: is its disk full?"
                )

    def write(self, work: Callable[[sa.Connection], Result]) -> Result:
        """What `work` returns, once its transaction is committed. It does nothing but speak to its connection: it is
        called again where it was undone because another transaction was in its way, for `WAIT_SECONDS`."""

        def transaction() -> Result:
            with self.writing() as connection:
                return work(connection)

        return _until_free(transaction, self.is_conflict)

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """A transaction that sees one state of the database and changes nothing."""
        with (
            self.engine.connect().execution_options(**self._snapshot) as connection,
            connection.begin() as transaction,
        ):
            if self.is_sqlite:
                connection.exec_driver_sql("BEGIN")
            yield connection
            transaction.rollback()

    def is_conflict(self, error: BaseException) -> bool:
        """Whether a transaction was undone as another one was in its way: each held what the other needed (PostgreSQL
        ends one of them), or SQLite's file was locked. Begun anew it can be made."""
        if not isinstance(error, sa.exc.OperationalError) or error.orig is None:
            return False
        if self.is_sqlite:
            return _is_locked(error.orig)
        driver: Any = self.engine.dialect.loaded_dbapi
        return isinstance(error.orig, (driver.errors.DeadlockDetected, driver.errors.SerializationFailure))

    def close(self) -> None:
        self.engine.dispose()


def open_database(url: str) -> Database:
    """The database at `url`, with the tables of this version of ASTune. `url` is SQLAlchemy's: `sqlite:///online.db`,
    `postgresql://user@host/name`.

    Raises:
        StoreError: it cannot be reached, or a newer version of ASTune has upgraded it.
    """
    with _opening(url) as database:
        if (file := _file(database)) is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
        upgrade(database)
    return database


def open_existing(url: str) -> Database:
    """The database at `url`, for who looks at what is there: a mistyped address is an error and makes no new one.

    Raises:
        StoreError: as `open_database`, and where there is no store at `url`.
    """
    with _opening(url) as database:
        if ((file := _file(database)) is not None and not file.is_file()) or revision_of(database) is None:
            raise StoreError(
                f"there is no store at {shown(url)}: astune.online.store, or astune.monitor.store, names it"
            )
        upgrade(database)
    return database


@contextmanager
def _opening(url: str) -> Iterator[Database]:
    """The database, closed again where the block fails."""
    try:
        database = Database(url)
        try:
            yield database
        except BaseException:
            database.close()
            raise
    except UNUSABLE as error:
        raise StoreError(f"the database {shown(url)} cannot be used: {reason(error)}") from error


def check_usable(url: str) -> list[str] | None:
    """The revisions that the tables of the store at `url` lack, None where there is no store; makes and changes none.
    Raises StoreError as `open_database` would, as far as can be told without writing."""
    with _opening(url) as database:
        file = _file(database)
        needs = _needs(database) if file is None or file.exists() else None
        database.close()
    return needs


def upgrade(database: Database) -> None:
    """Bring the tables to this version; processes that start together do it once. A database that has them is not
    written to. Raises StoreError where a newer version of ASTune has upgraded it."""
    if _needs(database) == []:
        return
    config = _alembic()
    with database.writing() as connection:
        if not database.is_sqlite:
            connection.execute(sa.text(f"SELECT pg_advisory_xact_lock({UPGRADE_LOCK})"))
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def _alembic() -> AlembicConfig:
    config = AlembicConfig()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    return config


def _needs(database: Database) -> list[str] | None:
    """The revisions that its tables lack; None where it has none of ours. Raises StoreError for those of a newer
    ASTune."""
    known = [script.revision for script in ScriptDirectory.from_config(_alembic()).walk_revisions()]  # newest first
    present = revision_of(database)
    if present is None:
        return None
    if present not in known:
        raise StoreError(
            f"the database {database.shown} was upgraded by a newer ASTune (its tables are of revision {present}, this "
            f"ASTune knows up to {known[0]}): install that ASTune here too, or name another database"
        )
    return known[: known.index(present)]


def _file(database: Database) -> Path | None:
    """The file of a SQLite database that is named as one."""
    return None if not database.is_sqlite or _is_uri(database.url) else Path(str(database.url.database))


def revision_of(database: Database) -> str | None:
    """The revision of its tables; None where there are none."""
    with database.reading() as connection:
        if not sa.inspect(connection).has_table("alembic_version"):
            return None
        revision: str | None = connection.scalar(sa.text("SELECT version_num FROM alembic_version"))
        return revision


def shown(url: str) -> str:
    """The address without its password."""
    try:
        return sa.make_url(url).render_as_string(hide_password=True)
    except sa.exc.ArgumentError:
        return repr(url)


def reason(error: BaseException) -> str:
    """What the database said, without the statement and its values, which may be what a user wrote."""
    if isinstance(error, ModuleNotFoundError) and error.name == "psycopg":
        return "PostgreSQL needs psycopg: pip install 'astune[postgresql]'"
    cause = error.orig if isinstance(error, sa.exc.DBAPIError) and error.orig is not None else error
    return " ".join(str(cause).split())


def is_gone(error: BaseException) -> bool:
    """Whether the connection was lost with it."""
    return isinstance(error, sa.exc.DBAPIError) and error.connection_invalidated


def pause_after_conflict() -> None:
    """A moment, by chance longer or shorter, so that two do not meet again."""
    time.sleep(random.uniform(0.0, CONFLICT_PAUSE))


def _until_free(work: Callable[[], Result], is_conflict: Callable[[Exception], bool]) -> Result:
    """What `work` returns, which is called again while something else is in its way, for `WAIT_SECONDS`."""
    until = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            return work()
        except Exception as error:
            if not is_conflict(error) or time.monotonic() >= until:
                raise
        pause_after_conflict()


def _is_locked(error: BaseException) -> bool:
    return isinstance(error, sqlite3.OperationalError) and str(error).startswith(LOCKED)


def _known(url: str) -> sa.URL:
    parsed = sa.make_url(url)
    if parsed.drivername in ("postgres", "postgresql"):
        parsed = parsed.set(drivername="postgresql+psycopg")
    kind = parsed.get_backend_name()
    if kind not in ("sqlite", "postgresql"):
        raise StoreError(f"the store {shown(url)}: expected sqlite:///FILE or postgresql://..., got {kind!r}")
    if kind == "sqlite" and (
        not parsed.database or ":memory:" in parsed.database or parsed.query.get("mode") == "memory"
    ):
        raise StoreError(f"the store {shown(url)} is in memory, where its other processes do not see it: name a file")
    return parsed


def _is_uri(url: sa.URL) -> bool:
    return str(url.database).startswith("file:")


def _patience(url: sa.URL) -> dict[str, Any]:
    """What psycopg is told, unless the address says otherwise: a server that is away is noticed."""
    told: dict[str, Any] = {
        "connect_timeout": CONNECT_SECONDS,
        "tcp_user_timeout": int(1000 * WAIT_SECONDS),
        "keepalives_idle": CONNECT_SECONDS,
        "options": f"-c lock_timeout={int(1000 * WAIT_SECONDS)}",
    }
    return {name: value for name, value in told.items() if name not in url.query}


def _prepare(connection: Any, _: Any) -> None:
    connection.isolation_level = None  # or Python's driver begins transactions where it sees fit; `Database` does
    connection.execute(f"PRAGMA busy_timeout={int(1000 * WAIT_SECONDS)}")
    # Where two make this switch at once, busy_timeout does not count: both read, each would wait for the other.
    _until_free(lambda: connection.execute("PRAGMA journal_mode=WAL"), _is_locked)
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute("PRAGMA foreign_keys=ON")
    connection.execute("PRAGMA secure_delete=ON")  # what is deleted is overwritten, not only marked as free
