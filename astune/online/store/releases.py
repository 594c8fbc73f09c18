"""Releases: tests of a challenger against the champion on a growing share of users. One at most is open.

staged       begun, nobody has seen it
gate         both versions play held-out tasks
testing      the challenger answers `share` of the users, in stage `stage`
promoted     ended: the challenger became champion
held         ended: it gets no traffic until a person decides
rolled_back  ended: it was worse, or did harm

Every change is a compare-and-set with an audit line, so a release that somebody ended meanwhile stays ended.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import sqlalchemy as sa

from astune.errors import StoreError
from astune.online.store import aliases, audit
from astune.store.tables import releases

Open = Literal["staged", "gate", "testing"]
Ended = Literal["promoted", "held", "rolled_back"]
BEGUN, ADVANCED, ENDED = "release begun", "release advanced", "release ended"
"""Kinds of audit lines; their subject is the challenger."""
BEGUN_AGAIN = "release stage begun again"
"""By a clock that was ahead it began later than now."""
BEFORE_STAGES = -1
LEASE = "release"
"""The lease of the process that does all this."""


@dataclass(frozen=True)
class Release:
    """Times are in seconds since 1970. `share` of the units get the challenger in `stage`. `reason` says why it ended,
    or what it waits for. `settings` are `astune.online.release` when it began."""

    number: int
    champion: int
    challenger: int
    salt: str
    state: str
    stage: int
    share: float
    began: float
    stage_began: float
    ended: float | None
    reason: str | None
    settings: Mapping[str, Any]
    figures: Mapping[str, Any]

    @property
    def is_open(self) -> bool:
        return self.ended is None


def describe(release: Release) -> str:
    """Say where a release stands, and why."""
    told = f"{release.number}: v{release.challenger} against v{release.champion}, {release.state}"
    if release.state == "testing":
        told = f"{told} at {release.share:.0%} (stage {release.stage + 1} of {len(release.settings['stages'])})"
    return told if release.reason is None else f"{told}: {release.reason}"


def find_open(connection: sa.Connection) -> Release | None:
    """Find the release that is under way."""
    row = connection.execute(releases.select().where(releases.c.open == 1)).first()
    return None if row is None else _release(row)


def recent(connection: sa.Connection, most: int) -> list[Release]:
    """Load the last so many, the newest first."""
    return [_release(row) for row in connection.execute(releases.select().order_by(releases.c.id.desc()).limit(most))]


def count_ended(connection: sa.Connection) -> dict[str, int]:
    """Count the releases that have ended, by state."""
    counted = sa.select(releases.c.state, sa.func.count()).where(releases.c.open.is_(None)).group_by(releases.c.state)
    return {row.state: row[1] for row in connection.execute(counted)}


def was_tested(connection: sa.Connection, version: int) -> bool:
    """True of a version that has had a release, however that ended."""
    return connection.scalar(sa.select(releases.c.id).where(releases.c.challenger == version).limit(1)) is not None


def open_release(
    connection: sa.Connection, challenger: int, settings: Mapping[str, Any], *, role: audit.Role, now: float
) -> Release:
    """Begin to test a version against champion. Raises StoreError where a release is open already, or where the version
    is champion."""
    champion = aliases.champion(connection).number
    if champion == challenger:
        raise StoreError(f"v{challenger} is champion: there is nothing to test it against")
    row = {"champion": champion, "challenger": challenger, "salt": secrets.token_hex(8), "state": "staged"}
    row |= {"stage": BEFORE_STAGES, "share": 0.0, "began": now, "stage_began": now, "settings": dict(settings)}
    try:
        with connection.begin_nested():
            connection.execute(releases.insert().values(**row, figures={}, open=1))
    except sa.exc.IntegrityError as error:
        under_way = find_open(connection)
        tested = "another version" if under_way is None else f"v{under_way.challenger}"
        raise StoreError(f"v{challenger} cannot be tested now: {tested} is, and only one is at a time") from error
    found = find_open(connection)
    assert found is not None
    before, why = aliases.version_of(connection, aliases.CHALLENGER), f"release {found.number}"
    aliases.move(connection, aliases.CHALLENGER, to=challenger, expected=before, role=role, why=why, now=now)
    audit.say(connection, role, BEGUN, str(challenger), now=now, release=found.number, champion=champion)
    return found


def advance(
    connection: sa.Connection, release: Release, state: Open, *, stage: int, share: float, why: str, now: float
) -> Release:
    """Bring it to another state or stage, if it is as it was read. Raises StoreError where it is not, and for a share
    that narrows."""
    if share < release.share:
        raise StoreError(f"release {release.number}: its share is {release.share:g} and cannot narrow to {share:g}")
    after = replace(release, state=state, stage=stage, share=share, stage_began=now, reason=None)
    values = {"state": state, "stage": stage, "share": share, "stage_began": now, "reason": None}
    _change(connection, release, values)
    said = {"release": release.number, "state": state, "stage": stage, "share": share, "why": why}
    audit.say(connection, "release", ADVANCED, str(release.challenger), now=now, **said)
    return after


def begin_again(connection: sa.Connection, release: Release, now: float) -> Release:
    """Let the stage begin now, where it began by a clock that was ahead. Raises StoreError where it is not as it was
    read."""
    began = min(release.began, now)
    _change(connection, release, {"began": began, "stage_began": now})
    audit.say(connection, "release", BEGUN_AGAIN, str(release.challenger), now=now, release=release.number)
    return replace(release, began=began, stage_began=now)


def note(connection: sa.Connection, release: Release, figures: Mapping[str, Any], reason: str | None) -> Release:
    """Write what a look found, and what the release waits for. Raises StoreError where it is not as it was read."""
    _change(connection, release, {"figures": dict(figures), "reason": reason})
    return replace(release, figures=figures, reason=reason)


def end_release(
    connection: sa.Connection, challenger: int, *, state: Ended, reason: str, role: audit.Role, now: float
) -> Release | None:
    """End the open release of a version, if it has one, and take the alias `challenger` from it. What becomes of the
    version, the caller does in the same transaction. The release as it was before; None where there is none."""
    release = find_open(connection)
    if release is None or release.challenger != challenger:
        return None
    _change(connection, release, {"state": state, "share": 0.0, "ended": now, "reason": reason, "open": None})
    if aliases.version_of(connection, aliases.CHALLENGER) == challenger:
        aliases.move(connection, aliases.CHALLENGER, to=None, expected=challenger, role=role, why=reason, now=now)
    said = {"release": release.number, "state": state, "stage": release.stage, "share": release.share, "why": reason}
    audit.say(connection, role, ENDED, str(challenger), now=now, **said)
    return release


def _change(connection: sa.Connection, release: Release, values: Mapping[str, Any]) -> None:
    as_read = (releases.c.open == 1, releases.c.state == release.state, releases.c.stage == release.stage)
    changed = connection.execute(releases.update().where(releases.c.id == release.number, *as_read).values(**values))
    if not changed.rowcount:
        raise StoreError(f"release {release.number} was changed meanwhile, by a command or another process")


def _release(row: sa.Row[Any]) -> Release:
    fields: list[Any] = list(row)[:-1]  # in the order of the columns, of which `open` is the last
    return Release(*fields)
