"""Aliases: names that move from version to version. A version never changes; what it is to the service is an alias.

champion     answers, and is what the next version is made from
challenger   is tested against it, while a release is open
previous     was champion before
v1.0, ...    your own

with database.writing() as connection:
    move(connection, "champion", to=8, expected=7, role="command", why="as ana wants it", now=time.time())
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import sqlalchemy as sa

from astune.errors import StoreError, nearest
from astune.online.store import audit
from astune.online.store.versions import AS_CONFIGURED, ModelVersion, find
from astune.store.tables import aliases, versions

CHAMPION, CHALLENGER, PREVIOUS = "champion", "challenger", "previous"
MOVED = "alias moved"
"""The kind of the audit line of a move."""
_NUMBER = re.compile(r"v?(\d{1,9})")
_ALIAS = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class Alias:
    """`moved` is in seconds since 1970."""

    name: str
    version: int
    moved: float


def version_of(connection: sa.Connection, name: str) -> int | None:
    """The number of the version that has the alias; None if none has."""
    found: int | None = connection.scalar(sa.select(aliases.c.version).where(aliases.c.name == name))
    return found


def champion(connection: sa.Connection) -> ModelVersion:
    """The version that answers; the model as configured where no service has registered one."""
    number = version_of(connection, CHAMPION)
    return AS_CONFIGURED if number is None else find(connection, number) or ModelVersion(number)


def every_alias(connection: sa.Connection) -> list[Alias]:
    """Load all aliases, by name."""
    return [
        Alias(row.name, row.version, row.moved) for row in connection.execute(aliases.select().order_by(aliases.c.name))
    ]


def move(
    connection: sa.Connection,
    name: str,
    *,
    to: int | None,
    expected: int | None,
    role: audit.Role,
    why: str,
    now: float,
) -> None:
    """Give the alias to version `to`, or to none, if version `expected` has it still, or none. Writes an audit line.

    Raises:
        StoreError: another process moved it meanwhile, version `to` is not there, or the alias has no valid name.
    """
    check_name(name)
    if to is not None and find(connection, to) is None:
        raise StoreError(f"{name}: there is no version {to}")
    if not _replace(connection, name, to, expected, now):
        raise _tell_moved(connection, name, expected)
    audit.say(connection, role, MOVED, name, now=now, version=to, before=expected, why=why)


def check_name(name: str) -> None:
    """Raises StoreError for what is no name of an alias or of a version."""
    if not _ALIAS.fullmatch(name) or _NUMBER.fullmatch(name):
        raise StoreError(f"the name {name!r:.100}: expected a letter, then letters, digits, '.', '_' or '-'; not as v7")


def expect(connection: sa.Connection, name: str, expected: int) -> None:
    """Raises StoreError where the alias was moved since somebody looked at it."""
    if version_of(connection, name) not in (expected, None):
        raise _tell_moved(connection, name, expected)


def _tell_moved(connection: sa.Connection, name: str, expected: int | None) -> StoreError:
    return StoreError(
        f"{name} was moved meanwhile: it is {_show(version_of(connection, name))} by now, and was {_show(expected)} "
        "when this began. Look at `astune online versions list` and decide again"
    )


def promote(connection: sa.Connection, number: int, *, role: audit.Role, why: str, now: float) -> None:
    """Make a version champion, and the champion before it `previous`. Raises StoreError as `move`."""
    before, last = version_of(connection, CHAMPION), version_of(connection, PREVIOUS)
    move(connection, CHAMPION, to=number, expected=before, role=role, why=why, now=now)
    if before is not None and before != number:
        move(connection, PREVIOUS, to=before, expected=last, role=role, why=why, now=now)


def resolve(connection: sa.Connection, text: str) -> ModelVersion:
    """Find the version that `text` means: `v7`, `7`, an alias, or a name that people gave. Raises StoreError."""
    number = _NUMBER.fullmatch(text)
    if number is not None:
        found = find(connection, int(number[1]))
    else:
        by_alias = version_of(connection, text)
        by_name = connection.scalar(sa.select(versions.c.version).where(versions.c.name == text))
        known = by_alias if by_alias is not None else by_name
        found = None if known is None else find(connection, known)
    if found is None:
        names = [alias.name for alias in every_alias(connection)]
        names += list(connection.scalars(sa.select(versions.c.name).where(versions.c.name.is_not(None))))
        names += [f"v{each}" for each in connection.scalars(sa.select(versions.c.version))]
        raise StoreError(f"there is no version {text!r:.100}.{nearest(text, names)}")
    return found


def _replace(connection: sa.Connection, name: str, to: int | None, expected: int | None, now: float) -> bool:
    """Tell whether the alias was as expected; it is as wanted then."""
    if expected is None:
        if to is None:
            return version_of(connection, name) is None
        try:
            with connection.begin_nested():
                connection.execute(aliases.insert().values(name=name, version=to, moved=now))
        except sa.exc.IntegrityError:
            return False
        return True
    its = (aliases.c.name == name, aliases.c.version == expected)
    if to is None:
        return bool(connection.execute(aliases.delete().where(*its)).rowcount)
    return bool(connection.execute(aliases.update().where(*its).values(version=to, moved=now)).rowcount)


def _show(number: int | None) -> str:
    return "no version" if number is None else f"v{number}"
