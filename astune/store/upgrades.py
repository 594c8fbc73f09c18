"""From the tables of an older ASTune to those of this one: all of it in the caller's transaction, or nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config as AlembicConfig
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from astune.errors import StoreError
from astune.store.tables import metadata


def revision_in(connection: sa.Connection) -> str | None:
    """The revision of the tables; None where there are none."""
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    revision: str | None = connection.scalar(sa.text("SELECT version_num FROM alembic_version"))
    return revision


def list_revisions(config: AlembicConfig) -> list[str]:
    """List the revisions of this ASTune, the newest first."""
    return [script.revision for script in ScriptDirectory.from_config(config).walk_revisions()]


def upgrade_tables(connection: sa.Connection, config: AlembicConfig) -> None:
    """Bring the tables to the newest revision. On SQLite the transaction was begun without foreign keys: alembic makes
    a table anew to change a column, and with them to drop the old one would delete every row that refers to it.

    Raises:
        StoreError: rows would be lost, or a row would refer to one that is not there.
    """
    before = _counts(connection)
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    after = _counts(connection)
    wrong = [f"{name} would be gone" for name in before if name not in after]
    wrong += [
        f"{name} had {count} rows and would have {after[name]}"
        for name, count in before.items()
        if count != after.get(name, count)
    ]
    if connection.dialect.name == "sqlite":
        broken = connection.exec_driver_sql("PRAGMA foreign_key_check").all()
        wrong += [f"foreign keys of {name} would name nothing" for name in sorted({str(row[0]) for row in broken})]
    if wrong:
        raise StoreError(f"an upgrade of the tables went wrong, so nothing was changed: {'; '.join(wrong)}")


def differences(connection: sa.Connection) -> list[str]:
    """List how the tables differ from `tables`. Further tables and indexes, which somebody else made, do not count."""
    options = {"compare_type": connection.dialect.name != "sqlite"}  # a column of SQLite takes values of any type
    found = compare_metadata(MigrationContext.configure(connection, opts=options), metadata)
    return sorted(said for each in found for said in _describe(each))


def _describe(difference: Any) -> Iterator[str]:
    if isinstance(difference, list):  # all that is different about one column
        for what, _, table, column, *_ in difference:
            yield f"{table}.{column}: another {what.removeprefix('modify_')}"
        return
    what, *about = difference
    if what in ("add_column", "remove_column"):
        yield f"{about[1]}.{about[2].name} is {'missing' if what == 'add_column' else 'unknown'}"
    elif what == "add_table":
        yield f"the table {about[0].name} is missing"
    elif what in ("add_index", "add_constraint", "add_fk"):
        yield f"{about[0].name} of {about[0].table.name} is missing"


def _counts(connection: sa.Connection) -> Mapping[str, int]:
    """Rows of each table of ours, to which nobody else writes until the transaction ends."""
    there = set(sa.inspect(connection).get_table_names())
    ours = [table for name, table in metadata.tables.items() if name in there]
    if ours and connection.dialect.name == "postgresql":
        names = ", ".join(f'"{table.name}"' for table in ours)
        connection.execute(sa.text(f"LOCK TABLE {names} IN ACCESS EXCLUSIVE MODE"))
    counts = dict.fromkeys(there, 0)
    for table in ours:
        counts[table.name] = connection.scalar(sa.select(sa.func.count()).select_from(table)) or 0
    return counts
