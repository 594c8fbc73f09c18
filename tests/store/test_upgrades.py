"""What an upgrade of a filled store may not do: lose a row, break a reference, leave the tables half made."""

import hashlib
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from astune.errors import StoreError
from astune.online.store import aliases, succession, versions
from astune.online.store.retention import DAY, DeletionScope, delete, expire
from astune.online.store.trace import trace_answer, trace_version
from astune.store import database as database_module
from astune.store.database import Database, open_database
from astune.store.tables import requests
from tests.store.databases import url as url
from tests.store.rows import add, add_feedback, add_request, add_version, cells

LANDED = {
    "v0001_the_first_tables.py": "f12dd5a2cfa18ef2dc5b42d497b73c56996f9533bb2a2e57da509ea8dbd7fd14",
    "v0002_versions_in_production.py": "52167b46150387617773eb927e9e35674f146d32bf52ccab12a21311e87da87d",
}
"""SHA-256 of each migration. Stores were made by them, so none is ever changed: what is wrong in one, another fixes."""


@pytest.fixture
def migrate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Let the ASTune of this test know one more migration, which does `steps`."""

    def know(steps: str) -> None:
        folder = tmp_path / "migrations"
        shutil.copytree(database_module.MIGRATIONS, folder)
        body = "\n".join(f"    {line}" for line in steps.strip().splitlines())
        (folder / "versions" / "v9000_a_test.py").write_text(
            'import sqlalchemy as sa\nfrom alembic import op\n\nrevision = "9000"\ndown_revision = "0002"\n\n\n'
            f"def upgrade() -> None:\n{body}\n"
        )
        monkeypatch.setattr(database_module, "MIGRATIONS", folder)

    return know


@pytest.fixture
def filled(url: str) -> str:
    """The address of a store that a service has used."""
    with closing(open_database(url)) as database, database.writing() as connection:
        turn = add_request(connection, "msg-a", "conv-a", "Hi", user="ana")
        add_request(connection, "msg-b", "conv-a", "Ho", user="ana")
        add_feedback(connection, "ana", ["msg-a"])
        add_version(connection, 1, None, {"episode": (turn, ["msg-a"])})
    return url


def all_cells(url: str) -> dict[str, list[tuple[object, ...]]]:
    with closing(Database(url)) as database:
        return cells(database)


def copies(url: str) -> list[Path]:
    """Those beside the file, of which PostgreSQL has none."""
    file = Path(str(sa.make_url(url).database))
    return sorted(file.parent.glob(f"{file.name}.*before*")) if url.startswith("sqlite") else []


def read_columns(connection: sa.Connection, tables: sa.MetaData) -> dict[str, list[tuple[object, ...]]]:
    return {
        name: [tuple(row) for row in connection.execute(sa.select(table).order_by(*table.primary_key))]
        for name, table in tables.tables.items()
        if name != "alembic_version"
    }


@pytest.mark.fault(
    "The store",
    "a filled store of the first ASTune is upgraded while an old process has it open",
    "every row is there, a trace says the same, and what the old process writes is taken",
)
def test_a_store_of_the_first_tables_keeps_every_row_and_its_old_processes_go_on(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = tmp_path / "first_migrations"
    shutil.copytree(database_module.MIGRATIONS, first)
    for later in set((first / "versions").glob("v*.py")) - {first / "versions" / "v0001_the_first_tables.py"}:
        later.unlink()
    with monkeypatch.context() as patch:
        patch.setattr(database_module, "MIGRATIONS", first)
        old = open_database(url)
    with closing(old):
        with old.writing() as connection:
            turn = add_request(connection, "msg-a", "conv-a", "Hi", user="ana")
            add_feedback(connection, "ana", ["msg-a"])
            add_version(connection, 0, None, {})
            add_version(connection, 1, 0, {"episode": (turn, ["msg-a"])})
        tables = sa.MetaData()
        with old.reading() as connection:
            tables.reflect(connection)
            before = read_columns(connection, tables)
        with closing(open_database(url)) as database:
            with database.reading() as connection:
                assert read_columns(connection, tables) == before
                answer, made = trace_answer(connection, "msg-a"), trace_version(connection, 1)
                assert aliases.champion(connection).number == 1
            assert [each.version for each in answer.episodes] == [1] and len(answer.feedback) == 1
            assert [(each.msg_id, each.tokens) for each in made.samples] == [("msg-a", 2)] and made.parents == (0,)
            with old.writing() as connection:  # with the columns that it knows
                values = {"conversation_id": "conv-a", "number": 1, "exchange": "msg-b", "version": 1}
                add(connection, tables.tables["requests"], msg_id="msg-b", **values)
                add(connection, tables.tables["feedback"], author="ana", kind="thumb", state="counts")
                commit = add(connection, tables.tables["commits"], by="hand", state="made")
                add(connection, tables.tables["versions"], version=2, parent=1, commit_id=commit)
            with database.writing() as connection:
                assert trace_answer(connection, "msg-b").version == 1
                assert versions.find(connection, 2) == versions.ModelVersion(2, 1, commit)
                assert succession.promote_made(connection, 1, 2.0) == 2


RECREATED = """
for name in ("conversations", "requests", "turns", "feedback", "commits", "episodes", "runs"):
    with op.batch_alter_table(name) as batch:
        batch.create_check_constraint(f"ck_{name}", "1 = 1")  # for which SQLite needs the table anew
"""


@pytest.mark.fault(
    "The store",
    "an upgrade makes a table of a filled SQLite database anew",
    "no row that refers to it is lost, and a copy from before stands beside the file",
)
def test_an_upgrade_that_makes_tables_anew_keeps_every_row(filled: str, migrate) -> None:
    before = all_cells(filled)
    migrate(RECREATED)
    with closing(open_database(filled)) as database:
        assert cells(database) == before
        with pytest.raises(sa.exc.IntegrityError), database.writing() as connection:
            add_feedback(connection, "ana", ["msg-a"])
            connection.execute(requests.update().values(conversation_id="nobody's"))
    for copy in copies(filled):
        with sqlite3.connect(copy) as old:
            assert old.execute("SELECT version_num FROM alembic_version").fetchall() == [("0002",)]
        old.close()
        assert all_cells(f"sqlite:///{copy}") == before
    assert len(copies(filled)) == filled.startswith("sqlite")
    open_database(filled).close()
    assert len(copies(filled)) == filled.startswith("sqlite"), "one that is up to date is not copied"


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ('op.execute("DELETE FROM turns")', r"turns had 2 rows and would have 0"),
        ('op.drop_table("audit")', "audit would be gone"),
        ("op.execute(\"UPDATE turns SET msg_id = msg_id || 'x'\")", "(?i)foreign key"),
    ],
)
def test_an_upgrade_that_loses_something_changes_nothing(filled: str, migrate, steps: str, said: str) -> None:
    before = all_cells(filled)
    migrate(steps)
    with pytest.raises(StoreError, match=said):
        open_database(filled)
    assert all_cells(filled) == before


def test_a_copy_from_before_an_upgrade_is_told_of_and_goes_with_what_is_too_old(tmp_path: Path) -> None:
    with closing(open_database(f"sqlite:///{tmp_path}/store.db")) as database:
        copy = tmp_path / "store.db.before-9000"
        copy.write_bytes(b"a conversation")
        assert delete(database, DeletionScope(user="ana"), role="command", now=0.0).copies == [str(copy)]
        made = copy.stat().st_mtime
        expire(database, 30.0, now=made + 29 * DAY)
        assert copy.exists()
        assert expire(database, 30.0, now=made + 31 * DAY).copies == [] and not copy.exists()


def test_a_migration_that_has_landed_is_never_changed() -> None:
    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (database_module.MIGRATIONS / "versions").glob("v*.py")
    }
    assert found == LANDED, "write another migration instead: stores were made by this one. A new one is added here"
