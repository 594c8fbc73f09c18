"""A database and its transactions."""

from __future__ import annotations

import logging
import os
import random
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from alembic.config import Config as AlembicConfig
from alembic.util import CommandError

from astune.errors import StoreError
from astune.store.upgrades import list_revisions, revision_in, upgrade_tables

logger = logging.getLogger(__name__)

WAIT_SECONDS = 30.0
"""The time for which a transaction waits for another one's lock, and a write for a server that is away."""
CONNECT_SECONDS = 10
CONFLICT_PAUSE = 0.02
"""Most seconds until a transaction that had a conflict is tried again."""
MIGRATIONS = Path(__file__).parent / "migrations"
UPGRADE_LOCK = 4927
"""The number that ASTune's processes agree on in PostgreSQL."""
COPY = ".before-"
"""Stands between the file's name and the new revision in the name of a copy from before an upgrade."""
LOCKED = ("database is locked", "database table is locked", "database schema is locked")
"""Beginnings of SQLite's messages while another connection writes; only Python 3.11 has error codes."""
UNUSABLE = (sa.exc.SQLAlchemyError, CommandError, ImportError, OSError)

Result = TypeVar("Result")


class Database:
    """A SQL database. Any thread may use it; each transaction has its own connection.

    Several processes may open the same database. On SQLite one transaction writes at a time and the others wait. A
    committed transaction survives the end of the process by any signal. On SQLite a power cut may lose the last
    transactions (`synchronous=NORMAL`), but never a part of one.
    """

    def __init__(self, url: str) -> None:
        self.url = _check_url(url)
        if self.is_sqlite:
            options: dict[str, Any] = {"connect_args": {"timeout": WAIT_SECONDS, "check_same_thread": False}}
        else:
            options = {"pool_pre_ping": True, "connect_args": _patience(self.url)}
        # Errors go into logs, and what people said does not.
        self.engine = sa.create_engine(self.url, hide_parameters=True, **options)
        self._snapshot = {} if self.is_sqlite else {"isolation_level": "REPEATABLE READ"}
        if self.is_sqlite:
            sa.event.listen(self.engine, "connect", _prepare)

    @property
    def is_sqlite(self) -> bool:
        return self.url.get_backend_name() == "sqlite"

    @property
    def address(self) -> str:
        """The address without its password."""
        return self.url.render_as_string(hide_password=True)

    @contextmanager
    def writing(self, *, foreign_keys: bool = True) -> Iterator[sa.Connection]:
        """A transaction: committed at the end of the block, rolled back if that raises. Without `foreign_keys` SQLite
        neither checks nor follows them in it."""
        with self.engine.connect() as connection, self._foreign_keys(connection, foreign_keys), connection.begin():
            if self.is_sqlite:  # one that begins by reading and goes on to write fails at once where another writes
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            yield connection
            # Without a transaction COMMIT would do nothing and report nothing.
            if self.is_sqlite and not connection.connection.in_transaction:
                raise StoreError(
                    f"the database {self.address} has rolled a transaction back by itself: is its disk full?"
                )

    @contextmanager
    def _foreign_keys(self, connection: sa.Connection, checked: bool) -> Iterator[None]:
        """Around a transaction, as SQLite turns them neither on nor off in one."""
        if checked or not self.is_sqlite:
            yield
            return
        raw = connection.connection.cursor()
        raw.execute("PRAGMA foreign_keys=OFF")
        try:
            yield
        finally:
            raw.execute("PRAGMA foreign_keys=ON")

    def write(self, work: Callable[[sa.Connection], Result]) -> Result:
        """Call `work` in a transaction, commit it, and return the result of `work`. If a conflict with another
        transaction undoes it, `work` is called again, for up to `WAIT_SECONDS`; so it must do nothing but use its
        connection."""

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

    def read(self, work: Callable[[sa.Connection], Result]) -> Result:
        """The result of `work`, which is called in a transaction of `reading`."""
        with self.reading() as connection:
            return work(connection)

    def is_conflict(self, error: BaseException) -> bool:
        """True if a conflict with another transaction undid this one: a deadlock, of which PostgreSQL ends one side, or
        a lock on SQLite's file. The same transaction may succeed when it is tried again."""
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
    """The database at `url`, for reading what is there: a mistyped address is an error and makes no new database.

    Raises:
        StoreError: as `open_database`, and where there is no store at `url`.
    """
    with _opening(url) as database:
        if ((file := _file(database)) is not None and not file.is_file()) or find_revision(database) is None:
            raise StoreError(
                f"there is no store at {show_url(url)}: astune.online.store, or astune.monitor.store, names it"
            )
        upgrade(database)
    return database


@contextmanager
def _opening(url: str) -> Iterator[Database]:
    """A database that is closed again if the block fails."""
    try:
        database = Database(url)
        try:
            yield database
        except BaseException:
            database.close()
            raise
    except UNUSABLE as error:
        raise StoreError(f"the database {show_url(url)} cannot be used: {reason(error)}") from error


def check_usable(url: str) -> list[str] | None:
    """The revisions that the tables of the store at `url` lack; None if there is no store. Nothing is written. Raises
    StoreError as `open_database` would, as far as that can be known without writing."""
    with _opening(url) as database:
        file = _file(database)
        needs = _needs(database) if file is None or file.exists() else None
        database.close()
    return needs


def upgrade(database: Database) -> None:
    """Bring the tables to this version; processes that start together do it once. A database that has them is not
    written to. What SQLite's file was before is kept in a copy beside it.

    Raises:
        StoreError: a newer version of ASTune has upgraded it, or the upgrade would have lost something.
    """
    if _needs(database) == []:
        return

    def bring_up_to_date() -> None:
        with database.writing(foreign_keys=False) as connection:
            if not database.is_sqlite:
                connection.execute(sa.text(f"SELECT pg_advisory_xact_lock({UPGRADE_LOCK})"))
            lacks = _lacking(revision_in(connection), database)
            if lacks == []:
                return  # another process was quicker
            if lacks is not None and database.is_sqlite:
                _copy(connection, lacks[0])
            upgrade_tables(connection, _alembic())

    _until_free(bring_up_to_date, database.is_conflict)


def _copy(connection: sa.Connection, revision: str) -> None:
    """Write `FILE.before-REVISION` beside the file of SQLite, whose transaction has changed nothing yet."""
    file = file_of(connection)
    copy, new = file.with_name(f"{file.name}{COPY}{revision}"), file.with_name(f"{file.name}.copy")
    try:
        copy_sqlite(file, new)
        os.replace(new, copy)
    except (sqlite3.Error, OSError) as error:
        new.unlink(missing_ok=True)
        raise StoreError(
            f"the tables of {file} are not brought up to date, as no copy of it can be written beside it: {error}"
        ) from error
    logger.warning("the tables of %s are brought to revision %s; %s has it as it was before", file, revision, copy)


def copy_sqlite(file: Path, to: Path) -> None:
    """Write what SQLite's file holds at one moment into a new file, whoever writes meanwhile."""
    os.close(os.open(to, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600))  # nobody else may read it meanwhile
    with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(to)) as target:
        source.backup(target)
    shutil.copymode(file, to)


def copies_of(database: Database) -> list[Path]:
    """The copies from before upgrades that stand beside the file of SQLite."""
    if not database.is_sqlite:
        return []
    with database.reading() as connection:
        file = file_of(connection)
    return sorted(path for path in file.parent.iterdir() if path.name.startswith(f"{file.name}{COPY}"))


def file_of(connection: sa.Connection) -> Path:
    """The file of a SQLite database."""
    return Path(next(row.file for row in connection.exec_driver_sql("PRAGMA database_list") if row.name == "main"))


def _alembic() -> AlembicConfig:
    config = AlembicConfig()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    return config


def _needs(database: Database) -> list[str] | None:
    """The revisions that its tables lack, the newest first; None where it has none of ours. Raises StoreError for those
    of a newer ASTune."""
    return _lacking(find_revision(database), database)


def _lacking(present: str | None, database: Database) -> list[str] | None:
    known = list_revisions(_alembic())
    if present is None:
        return None
    if present not in known:
        raise StoreError(
            f"the database {database.address} was upgraded by a newer ASTune (its tables are of revision {present}, "
            f"this ASTune knows up to {known[0]}): install that ASTune here too, or name another database"
        )
    return known[: known.index(present)]


def _file(database: Database) -> Path | None:
    """The file of a SQLite database whose address names a file."""
    return None if not database.is_sqlite or _is_uri(database.url) else Path(str(database.url.database))


def find_revision(database: Database) -> str | None:
    """The revision of its tables; None where there are none."""
    return database.read(revision_in)


def show_url(url: str) -> str:
    """The address without its password."""
    try:
        return sa.make_url(url).render_as_string(hide_password=True)
    except sa.exc.ArgumentError:
        return repr(url)


def reason(error: BaseException) -> str:
    """The database's message, without the statement and its values, which a user may have written."""
    if isinstance(error, ModuleNotFoundError) and error.name == "psycopg":
        return "PostgreSQL needs psycopg: pip install 'astune[postgresql]'"
    cause = error.orig if isinstance(error, sa.exc.DBAPIError) and error.orig is not None else error
    return " ".join(str(cause).split())


def is_gone(error: BaseException) -> bool:
    """True if the error means that the connection is lost."""
    return isinstance(error, sa.exc.DBAPIError) and error.connection_invalidated


def pause_after_conflict() -> None:
    """Sleep for a random moment, so that two transactions do not collide again."""
    time.sleep(random.uniform(0.0, CONFLICT_PAUSE))


def _until_free(work: Callable[[], Result], is_conflict: Callable[[Exception], bool]) -> Result:
    """Return the result of `work`, which is called again on a conflict, for up to `WAIT_SECONDS`."""
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


def _check_url(url: str) -> sa.URL:
    parsed = sa.make_url(url)
    if parsed.drivername in ("postgres", "postgresql"):
        parsed = parsed.set(drivername="postgresql+psycopg")
    kind = parsed.get_backend_name()
    if kind not in ("sqlite", "postgresql"):
        raise StoreError(f"the store {show_url(url)}: expected sqlite:///FILE or postgresql://..., got {kind!r}")
    if kind == "sqlite" and (
        not parsed.database or ":memory:" in parsed.database or parsed.query.get("mode") == "memory"
    ):
        raise StoreError(
            f"the store {show_url(url)} is in memory, where its other processes do not see it: name a file"
        )
    return parsed


def _is_uri(url: sa.URL) -> bool:
    return str(url.database).startswith("file:")


def _patience(url: sa.URL) -> dict[str, Any]:
    """Options with which psycopg notices that a server is away; those in the address come first."""
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
