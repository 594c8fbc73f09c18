"""Rows that are inserted once, however often and by how many processes they are brought."""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite


def insert_once(connection: sa.Connection, table: sa.Table, row: Mapping[str, object]) -> None:
    """Insert the row unless there is one with its key."""
    if connection.dialect.name == "postgresql":
        connection.execute(postgresql.insert(table).on_conflict_do_nothing(), dict(row))
    else:
        connection.execute(sqlite.insert(table).on_conflict_do_nothing(), dict(row))
