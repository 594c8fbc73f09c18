"""Versions of the model: what was made of which, where its checkpoint stands. A row is added once and never changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from astune.errors import StoreError
from astune.store.once import insert_once
from astune.store.tables import versions


@dataclass(frozen=True)
class ModelVersion:
    """`folder` is that of its checkpoint within the folder of versions, where the newest are kept; `sha256` is that of
    its files. Both are None of the model as configured, which is version 0. `made` is in seconds since 1970."""

    number: int
    parent: int | None = None
    commit_id: int | None = None
    folder: str | None = None
    sha256: str | None = None
    made: float = 0.0
    config: Mapping[str, Any] = field(default_factory=dict)
    figures: Mapping[str, Any] = field(default_factory=dict)


AS_CONFIGURED = ModelVersion(0)


def newest(connection: sa.Connection) -> ModelVersion:
    """The version to answer with and to train from; the model as configured where none was made yet."""
    row = connection.execute(versions.select().order_by(versions.c.version.desc()).limit(1)).first()
    return AS_CONFIGURED if row is None else _version(row)


def find(connection: sa.Connection, number: int) -> ModelVersion | None:
    """That version; None if there is none."""
    row = connection.execute(versions.select().where(versions.c.version == number)).first()
    return _version(row) if row is not None else AS_CONFIGURED if number == 0 else None


def every(connection: sa.Connection) -> list[ModelVersion]:
    """All that were made, oldest first."""
    return [_version(row) for row in connection.execute(versions.select().order_by(versions.c.version))]


def add(connection: sa.Connection, version: ModelVersion) -> None:
    """Make it the newest. Raises StoreError if another one was made since its parent was the newest: then this one must
    not come to be."""
    now = newest(connection).number
    if version.parent != now or version.number != now + 1:
        raise StoreError(
            f"version {version.number} was made from version {version.parent}, but the newest is {now} by now"
        )
    connection.execute(versions.insert().values(**_row_of(version)))


def register(connection: sa.Connection, configured: ModelVersion) -> None:
    """Write down what version 0 is, at the first start of a service."""
    insert_once(connection, versions, _row_of(configured))


def _row_of(version: ModelVersion) -> dict[str, object]:
    return {
        "version": version.number,
        "parent": version.parent,
        "commit_id": version.commit_id,
        "folder": version.folder,
        "sha256": version.sha256,
        "made": version.made,
        "config": dict(version.config),
        "figures": dict(version.figures),
    }


def _version(row: sa.Row[Any]) -> ModelVersion:
    return ModelVersion(
        row.version, row.parent, row.commit_id, row.folder, row.sha256, row.made, row.config, row.figures
    )
