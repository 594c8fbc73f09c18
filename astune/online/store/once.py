"""Inserts that may be repeated, also by several processes."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite


def insert_once(connection: sa.Connection, table: sa.Table, row: Mapping[str, object]) -> None:
    """Insert the row unless there is one with its key."""
    connection.execute(_once(table, connection.dialect.name), dict(row))


def insert_or_raise(connection: sa.Connection, table: sa.Table, row: Mapping[str, object], column: str) -> None:
    """Insert the row; a row that has its primary key already gets the larger of both values of `column`. In both cases
    the row is locked until the transaction ends."""
    connection.execute(_or_raise(table, column, connection.dialect.name), dict(row))


def insert_or_add(
    connection: sa.Connection, table: sa.Table, key: Mapping[str, object], numbers: Mapping[str, object]
) -> None:
    """Insert a row of numbers; a row that has the key already gets the sums."""
    connection.execute(_or_add(table, tuple(numbers), connection.dialect.name), {**key, **numbers})


@functools.cache
def _once(table: sa.Table, dialect: str) -> sa.Insert:
    return _insert(table, dialect).on_conflict_do_nothing()


@functools.cache
def _or_raise(table: sa.Table, column: str, dialect: str) -> sa.Insert:
    insert = _insert(table, dialect)
    there, new = table.c[column], insert.excluded[column]
    larger = {column: sa.case((there < new, new), else_=there)}
    return insert.on_conflict_do_update(index_elements=list(table.primary_key), set_=larger)


@functools.cache
def _or_add(table: sa.Table, columns: tuple[str, ...], dialect: str) -> sa.Insert:
    insert = _insert(table, dialect)
    sums = {name: table.c[name] + insert.excluded[name] for name in columns}
    return insert.on_conflict_do_update(index_elements=list(table.primary_key), set_=sums)


def _insert(table: sa.Table, dialect: str) -> postgresql.Insert | sqlite.Insert:
    return postgresql.insert(table) if dialect == "postgresql" else sqlite.insert(table)
