"""What people do with versions beside moving aliases: name them, look for what differs, and let files go.

find_needed   the versions whose files stay, each with the reason
mark_pruned   says of others that their files are gone; those of a version that is not marked are never deleted
give_name     once
compare       two versions
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from astune.config.online import OnlineConfig
from astune.config.section import flatten
from astune.errors import StoreError
from astune.online.store import aliases, audit
from astune.online.store.feedback.states import lock
from astune.online.store.succession import base_of
from astune.online.store.versions import ModelVersion, every, find, load_tree
from astune.store.tables import releases, requests, versions

DATA_DIGEST = "data_digest"
"""The figure of a version that says what it was learned from: two of the same digest learned the same."""


def find_needed(connection: sa.Connection, online: OnlineConfig, newest: int, now: float) -> dict[int, str]:
    """Find the versions whose files stay, with the reason: the `newest` so many, and each that an alias, a name, an
    open conversation, an open release or the next commit needs."""
    lock(connection)
    last = sa.select(versions.c.version).order_by(versions.c.version.desc()).limit(newest)
    found = dict.fromkeys(connection.scalars(last), "among the newest, astune.trainer.keep_checkpoints")
    base = base_of(connection, online).number
    path = load_tree(connection).path(base)
    served = aliases.champion(connection).number
    found |= dict.fromkeys(path[: path.index(served) + 1 if served in path else 1], "the next commit begins from it")
    for number in (base, served):
        version = find(connection, number)
        if version is not None and version.parent is not None:
            found.setdefault(version.parent, f"v{number} was made from it, and would go back to it")
    pinned = sa.select(requests.c.version).where(requests.c.answered > now - online.serve.pin_seconds).distinct()
    found |= dict.fromkeys(
        (number for number in connection.scalars(pinned) if number >= 0), "open conversations keep it"
    )
    for row in connection.execute(releases.select().where(releases.c.open.is_not(None))):
        found |= dict.fromkeys((row.champion, row.challenger), f"release {row.id} is open")
    named = sa.select(versions.c.version, versions.c.name).where(versions.c.name.is_not(None))
    found |= {row.version: f"it is called {row.name}" for row in connection.execute(named)}
    return found | {alias.version: f"it is {alias.name}" for alias in aliases.every_alias(connection)}


def find_unneeded(connection: sa.Connection, kept: Container[int]) -> list[ModelVersion]:
    """Find the versions beside those with files that were not marked yet."""
    return [each for each in every(connection) if each.folder and each.pruned is None and each.number not in kept]


def mark_pruned(connection: sa.Connection, gone: Sequence[ModelVersion], now: float, role: audit.Role) -> None:
    """Say that their files are gone. Belongs into the transaction in which they were found."""
    numbers = [version.number for version in gone]
    if numbers:
        connection.execute(versions.update().where(versions.c.version.in_(numbers)).values(pruned=now))
        audit.say(connection, role, "versions pruned", None, now=now, versions=numbers)


def give_name(connection: sa.Connection, version: ModelVersion, text: str, *, now: float) -> None:
    """Give a version its name, once. Raises StoreError where it has one, or another version or an alias has that."""
    aliases.check_name(text)
    owner = connection.scalar(sa.select(versions.c.version).where(versions.c.name == text))
    if owner is not None:
        raise StoreError(f"v{owner} is called {text!r} already")
    if aliases.version_of(connection, text) is not None:
        raise StoreError(f"{text!r} is an alias, which moves; a name stays")
    its = (versions.c.version == version.number, versions.c.name.is_(None))
    if not connection.execute(versions.update().where(*its).values(name=text)).rowcount:
        now_called = connection.scalar(sa.select(versions.c.name).where(versions.c.version == version.number))
        raise StoreError(f"v{version.number} is called {now_called!r} already: a name is given once")
    audit.say(connection, "command", "version named", str(version.number), now=now, name=text)


@dataclass(frozen=True)
class VersionDifference:
    """`figures` and `config` hold what differs, as (of the first, of the second); None where one has no such entry.
    `same_data` is None where it is not known what one of them learned from."""

    first: int
    second: int
    ancestor: int | None
    steps: int | None
    """From one to the other in the tree."""
    same_data: bool | None
    figures: Mapping[str, tuple[Any, Any]]
    config: Mapping[str, tuple[Any, Any]]


def compare(connection: sa.Connection, first: ModelVersion, second: ModelVersion) -> VersionDifference:
    tree = load_tree(connection)
    others = set(tree.path(second.number))
    digests = [version.figures.get(DATA_DIGEST) for version in (first, second)]
    return VersionDifference(
        first.number,
        second.number,
        next((number for number in tree.path(first.number) if number in others), None),
        tree.distance(first.number, second.number),
        None if None in digests else digests[0] == digests[1],
        _differences(first.figures, second.figures),
        _differences(dict(flatten(first.config)), dict(flatten(second.config))),
    )


def _differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    names = sorted({*first, *second})
    return {name: (first.get(name), second.get(name)) for name in names if first.get(name) != second.get(name)}
