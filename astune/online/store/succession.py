"""Which version becomes champion after which, which is trained from, and the way back.

    base_of       what the next commit begins from
    promote_made  the rule of the strategy `at_once`
    promote       by hand
    roll_back     away from a version and all that was made from it

A version that is held, or was made from one that is, becomes champion by hand alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from astune.config.online import OnlineConfig
from astune.errors import StoreError
from astune.online.store import aliases, audit, learned, releases
from astune.online.store.aliases import CHAMPION, PREVIOUS
from astune.online.store.feedback import states as feedback
from astune.online.store.versions import ModelVersion, find, load_tree
from astune.store.tables import versions

ROLLED_BACK = "rolled_back"
"""Why feedback and episodes are left out that a version was made from which was rolled back with `forget`."""


@dataclass(frozen=True)
class RolledBack:
    """`away` are the versions that do not answer again, `feedback` how much of what they were made from is left out."""

    champion: int
    away: Sequence[int]
    feedback: int = 0


def base_of(connection: sa.Connection, online: OnlineConfig) -> ModelVersion:
    """The version that `astune.online.commit.base` names. Of champion: the newest that commits made from it, which is
    another only until that becomes champion (`astune.online.serve.every_commits`). Raises StoreError where there is
    none."""
    name = online.commit.base
    if name == CHAMPION:
        return (waiting(connection) or [aliases.champion(connection)])[0]
    try:
        return aliases.resolve(connection, name)
    except StoreError as error:
        raise StoreError(f"astune.online.commit.base: {error}") from error


def waiting(connection: sa.Connection) -> list[ModelVersion]:
    """The versions that commits made from champion, each from the next, the newest first; nobody holds any of them."""
    served = aliases.champion(connection).number
    later = versions.select().where(versions.c.version > served, versions.c.commit_id.is_not(None))
    parents = {row.version: row.parent for row in connection.execute(later) if row.held is None}
    for number in sorted(parents, reverse=True):
        path = [number]
        while (parent := parents.get(path[-1])) is not None and parent in parents:
            path.append(parent)
        if parent == served:
            return [version for each in path if (version := find(connection, each)) is not None]
    return []


def find_untested(connection: sa.Connection, every_commits: int) -> ModelVersion | None:
    """The version that a release is to test next, by the strategy `staged`: the newest that commits made from champion,
    where it is `every_commits` of them after it, unless it was tested."""
    found = waiting(connection)
    if len(found) < every_commits or releases.was_tested(connection, found[0].number):
        return None
    return found[0]


def is_testing(connection: sa.Connection, every_commits: int) -> bool:
    """True while a version is tested, or waits for its test."""
    return releases.find_open(connection) is not None or find_untested(connection, every_commits) is not None


def promote_made(connection: sa.Connection, every_commits: int, now: float, why: str = "made") -> int | None:
    """Promote the newest version that commits made from champion, where it is `every_commits` of them after it. So is
    one that was added by an ASTune which knows no aliases. Its number, or None."""
    found = waiting(connection)
    if len(found) < every_commits:
        return None
    aliases.promote(connection, found[0].number, role="train", why=why, now=now)
    return found[0].number


def promote(connection: sa.Connection, version: ModelVersion, *, why: str, now: float) -> None:
    """Make a version champion by hand, held or not. Raises StoreError for one that champion was made from, as only the
    way back says what is to become of those between; and as `aliases.promote`."""
    if version.pruned is not None:
        raise StoreError(f"v{version.number} was pruned: its files are gone")
    served = aliases.champion(connection).number
    if served == version.number:
        raise StoreError(f"v{served} is champion already")
    if version.number in load_tree(connection).path(served):
        raise StoreError(
            f"v{served}, which is champion, was made from v{version.number}. To go back: astune online versions "
            f"rollback v{served} --to v{version.number}"
        )
    _write_held(connection, [version.number], None)
    releases.end_release(connection, version.number, state="promoted", reason=why, role="command", now=now)
    aliases.promote(connection, version.number, role="command", why=why, now=now)


def hold(connection: sa.Connection, version: ModelVersion, *, role: audit.Role, why: str, now: float) -> None:
    """Let nothing but a command make the version, or one made from it, champion; a test of it ends. Raises StoreError
    for champion."""
    if aliases.champion(connection).number == version.number:
        raise StoreError(f"v{version.number} is champion, and answers: roll it back in place of holding it")
    _write_held(connection, [version.number], why)
    releases.end_release(connection, version.number, state="held", reason=why, role=role, now=now)
    audit.say(connection, role, "version held", str(version.number), now=now, why=why)


def find_target(connection: sa.Connection, version: ModelVersion, to: ModelVersion | None) -> ModelVersion:
    """The version that is champion once `version` is rolled back: as it is now where that was not made from it, else
    `to`, by default its parent. Raises StoreError."""
    tree, served = load_tree(connection), aliases.champion(connection)
    if version.number not in tree.path(served.number):
        if to is not None:
            raise StoreError(f"champion, v{served.number}, was not made from v{version.number}: leave --to out")
        return served
    parent = version.parent if to is None else to.number
    found = None if parent is None else find(connection, parent)
    if found is None:
        raise StoreError(f"v{version.number} is the model as configured: there is none before it")
    if version.number in tree.path(found.number):
        raise StoreError(f"--to v{found.number}: it was made from v{version.number}, or is it")
    if found.pruned is not None:
        raise StoreError(f"v{found.number} was pruned: its files are gone. Name another, as --to v0")
    return found


def roll_back(
    connection: sa.Connection,
    version: ModelVersion,
    target: ModelVersion,
    *,
    forget: bool,
    role: audit.Role,
    why: str,
    now: float,
) -> RolledBack:
    """Make `target` (see `find_target`) champion in the place of `version` and all that was made from it, and hold
    those; a test of one ends. `forget`: what they were made from is never learned again. Raises StoreError where
    somebody was faster."""
    tree, served = load_tree(connection), aliases.version_of(connection, CHAMPION)
    away = sorted({version.number, *tree.heirs(version.number)})
    if served != target.number:
        aliases.move(connection, CHAMPION, to=target.number, expected=served, role=role, why=why, now=now)
        before = aliases.version_of(connection, PREVIOUS)
        if before in {*away, target.number}:
            to = next((each for each in tree.path(target.number)[1:] if find(connection, each) is not None), None)
            aliases.move(connection, PREVIOUS, to=to, expected=before, role=role, why=why, now=now)
    _write_held(connection, away, f"rolled back: {why}")
    for number in away:
        releases.end_release(connection, number, state="rolled_back", reason=why, role=role, now=now)
    count = _forget(connection, away, now, role) if forget else 0
    said = {"versions": away, "champion": target.number, "forget": forget, "feedback": count, "why": why}
    audit.say(connection, role, "rolled back", str(version.number), now=now, **said)
    return RolledBack(target.number, away, count)


def _forget(connection: sa.Connection, away: Sequence[int], now: float, role: audit.Role) -> int:
    count = 0
    for number in away:
        count += feedback.mark_trained(connection, number, "left_out", ROLLED_BACK, now, role)
        version = find(connection, number)
        if version is not None and version.commit_id is not None:
            learned.leave_out(connection, version.commit_id, ROLLED_BACK)
    return count


def _write_held(connection: sa.Connection, numbers: Sequence[int], why: str | None) -> None:
    connection.execute(versions.update().where(versions.c.version.in_(numbers)).values(held=why))
