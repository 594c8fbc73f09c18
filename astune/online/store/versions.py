"""Versions of the model: a tree, with checkpoints. A row is added once and never changed, but for the name that people
give it once, `pruned` and `held`. What a version is to the service, an alias says (`store.aliases`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from astune.errors import StoreError
from astune.online.store import audit
from astune.online.store.once import insert_once
from astune.store.tables import aliases, versions


@dataclass(frozen=True)
class ModelVersion:
    """`folder` is the name of its checkpoint in the folder of versions, which keeps the newest; `sha256` is the digest
    of its files. Version 0, the model as configured, has no folder. `made` is in seconds since 1970."""

    number: int
    parent: int | None = None
    commit_id: int | None = None
    folder: str | None = None
    sha256: str | None = None
    made: float = 0.0
    config: Mapping[str, Any] = field(default_factory=dict)
    figures: Mapping[str, Any] = field(default_factory=dict)
    name: str | None = None
    """As people call it."""
    probes: Mapping[str, Any] | None = None
    """Rows of token ids with the trainer's log-probabilities, which a server must reproduce."""
    origin: str | None = None
    """The checkpoint of a training run that it was imported from."""
    pruned: float | None = None
    """The time at which its folder was deleted on purpose."""
    held: str | None = None
    """Why nothing but a command makes it champion."""


class VersionTree:
    """Who was made from whom. A version that no row names stands alone.

    >>> tree = VersionTree({1: 0, 2: 1, 3: 1})
    >>> tree.distance(2, 3), tree.distance(0, 3), sorted(tree.heirs(1)), tree.path(3)
    (2, 2, [2, 3], [3, 1, 0])
    """

    def __init__(self, parents: Mapping[int, int | None]) -> None:
        self._parents = parents

    def path(self, number: int) -> list[int]:
        """The version and those that it was made from, up to the root."""
        found = [number]
        while (parent := self._parents.get(found[-1])) is not None:
            found.append(parent)
        return found

    def distance(self, one: int, other: int) -> int | None:
        """The number of steps from one to the other; None if nothing joins them."""
        steps = {number: count for count, number in enumerate(self.path(one))}
        return next((count + steps[number] for count, number in enumerate(self.path(other)) if number in steps), None)

    def heirs(self, number: int) -> set[int]:
        """The versions that were made from it, directly or not."""
        return {each for each in self._parents if each != number and number in self.path(each)}


AS_CONFIGURED = ModelVersion(0)
NOT_SERVED, SERVED = "version not served", "version served"
"""Kinds of audit lines: a version cannot be loaded, so another one answers; it could be loaded later."""


def newest(connection: sa.Connection) -> ModelVersion:
    """The version that was made last; the model as configured where none was made yet."""
    row = connection.execute(versions.select().order_by(versions.c.version.desc()).limit(1)).first()
    return AS_CONFIGURED if row is None else _version(row)


def find(connection: sa.Connection, number: int) -> ModelVersion | None:
    """Find a version; None if there is none with that number."""
    row = connection.execute(versions.select().where(versions.c.version == number)).first()
    return _version(row) if row is not None else AS_CONFIGURED if number == 0 else None


def every(connection: sa.Connection) -> list[ModelVersion]:
    """Load all versions, oldest first."""
    return [_version(row) for row in connection.execute(versions.select().order_by(versions.c.version))]


def load_tree(connection: sa.Connection) -> VersionTree:
    rows = connection.execute(sa.select(versions.c.version, versions.c.parent))
    return VersionTree({row.version: row.parent for row in rows})


def after(connection: sa.Connection, number: int) -> list[ModelVersion]:
    """Load the versions that were made after version `number`, the newest first."""
    rows = versions.select().where(versions.c.version > number).order_by(versions.c.version.desc())
    return [_version(row) for row in connection.execute(rows)]


def parent_of(connection: sa.Connection, version: ModelVersion) -> ModelVersion | None:
    """The version that it was made from; None of the model as configured."""
    return None if version.parent is None else find(connection, version.parent)


def why_not_served(connection: sa.Connection) -> str | None:
    """The reason why the champion does not answer, as a service has last reported; None if it does."""
    champion = connection.scalar(sa.select(aliases.c.version).where(aliases.c.name == "champion"))
    said = audit.lines(connection, subjects=[str(champion or 0)])
    last = [line for line in said if line.what in (NOT_SERVED, SERVED)][-1:]
    return next(
        (f"v{line.details['answers']} answers: {line.details['why']}" for line in last if line.what == NOT_SERVED), None
    )


def add(connection: sa.Connection, version: ModelVersion) -> None:
    """Add the newest version. Raises StoreError if another version was made since the one before was the newest: then
    this one must not be added."""
    now = newest(connection).number
    if version.number != now + 1:
        raise StoreError(f"version {version.number} is to follow {version.number - 1}, but the newest is {now} by now")
    connection.execute(versions.insert().values(**_row_of(version)))


def register(connection: sa.Connection, configured: ModelVersion) -> None:
    """Write the row of version 0, which is champion, at the first start of a service."""
    insert_once(connection, versions, _row_of(configured))
    insert_once(connection, aliases, {"name": "champion", "version": configured.number, "moved": configured.made})


def _row_of(version: ModelVersion) -> dict[str, object]:
    fields = {name: value for name, value in vars(version).items() if name != "number"}
    return {"version": version.number} | fields


def _version(row: sa.Row[Any]) -> ModelVersion:
    """Fields stand in the order of the columns."""
    return ModelVersion(*row)
