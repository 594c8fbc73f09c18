"""What must hold of versions, aliases and releases, whatever was killed in the middle of what."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from astune.errors import RunFolderError
from astune.online.store import aliases, audit, releases, succession, versions
from astune.online.store.assignments import place_of, unit_of
from astune.online.store.releases import Release
from astune.online.training.checkpoint import check_version
from astune.store import tables
from astune.store.database import open_database
from tests.attack.found import Found

MOST_TOLD = 5


def check_releases(kind: str, store: str, folder: Path) -> Iterator[Found]:
    """`folder` has the versions; no role is at work on it."""
    with closing(open_database(store)) as database, database.reading() as connection:
        every = releases.recent(connection, 10**6)[::-1]
        told = f"{len(every)} releases: {', '.join(f'{each.state} at {each.share:.0%}' for each in every[:9])}"
        parts = {
            "who was assigned to what is exact, and no arm flips": _wrong_assignments(connection, every),
            "no conversation changes its version, unless that was taken back": _changed(connection, every),
            "each step of a release was made once, and one at most is open": _wrong_steps(connection, every),
            "aliases are where the audit says": _wrong_aliases(connection),
            "folders are whole, and those of the rows": find_wrong_folders(connection, folder),
        }
        for row, wrong in parts.items():
            found = list(wrong)
            yield Found(f"{kind}: {row}", not found, f"{len(found)} wrong: {found[:MOST_TOLD]}" if found else told)


def hold_waiting(store: str) -> None:
    """Hold the version that is tested or waits for that, so that the trainer goes on."""
    with closing(open_database(store)) as database, database.writing() as connection:
        for version in succession.waiting(connection):
            succession.hold(connection, version, role="command", why="the attack is over", now=time.time())


def _answers(connection: sa.Connection) -> list[sa.Row[Any]]:
    """Whose each answer of a version of ours was, of which one and when, in time."""
    columns = tables.requests.c
    chosen = sa.select(columns.client, columns.user, columns.conversation_id, columns.version, columns.answered)
    return list(connection.execute(chosen.where(columns.version >= 0).order_by(columns.answered)))


def _wrong_assignments(connection: sa.Connection, every: list[Release]) -> Iterator[str]:
    """An assignment is written with the answer that it decided, so it has its time and its version. Each conversation
    that begins with the challenger has one."""
    answers = [(unit_of(row.client, row.user, row.conversation_id), row) for row in _answers(connection)]
    given = {(unit, row.version, row.answered) for unit, row in answers}
    rows = list(connection.execute(tables.assignments.select().order_by(tables.assignments.c.stage)))
    seen: dict[tuple[int, str], str] = {}
    by_number = {each.number: each for each in every}
    for row in rows:
        release = by_number[row.release_id]
        share = release.settings["stages"][row.stage]
        arm = "challenger" if place_of(release.salt, row.unit) < share else "champion"
        version = release.challenger if row.arm == "challenger" else release.champion
        if row.arm != arm:
            yield f"release {release.number}: {row.unit} is {row.arm} in stage {row.stage} and should be {arm}"
        if (row.unit, version, row.first) not in given:
            yield f"release {release.number}: {row.unit} has no answer of v{version} from when it was assigned"
        if seen.get((release.number, row.unit)) == "challenger" != row.arm:
            yield f"release {release.number}: {row.unit} flipped back in stage {row.stage}"
        seen[release.number, row.unit] = row.arm
    begun: set[str] = set()
    for unit, answer in answers:
        if answer.conversation_id in begun:
            continue
        begun.add(answer.conversation_id)
        for release in every:
            tested = release.challenger == answer.version and answer.answered < (release.ended or time.time())
            if tested and seen.get((release.number, unit)) != "challenger":
                yield f"release {release.number}: {unit} was answered by v{answer.version} and has no assignment"


def _changed(connection: sa.Connection, every: list[Release]) -> Iterator[str]:
    taken_back = {each.challenger for each in every if each.state in ("held", "rolled_back")}
    last: dict[str, int] = {}
    for row in _answers(connection):
        before = last.get(row.conversation_id, row.version)
        if before != row.version and before not in taken_back:
            yield f"{row.conversation_id}: v{before}, then v{row.version}"
        last[row.conversation_id] = row.version


def _wrong_steps(connection: sa.Connection, every: list[Release]) -> Iterator[str]:
    said = list(audit.lines(connection))
    if sum(each.is_open for each in every) > 1:
        yield "two releases are open"
    for release in every:
        its = [line for line in said if line.details.get("release") == release.number]
        count = {what: sum(line.what == what for line in its) for what in (releases.BEGUN, releases.ENDED)}
        if count != {releases.BEGUN: 1, releases.ENDED: int(not release.is_open)}:
            yield f"release {release.number}: {count}"
        steps = [(line.details["stage"], line.details["share"]) for line in its if line.what == releases.ADVANCED]
        if steps != sorted(set(steps)):
            yield f"release {release.number}: its stages were {steps}"


def _wrong_aliases(connection: sa.Connection) -> Iterator[str]:
    now: dict[str, int | None] = {}
    for line in audit.lines(connection, what=aliases.MOVED):
        name, before = str(line.subject), line.details["before"]
        if now.setdefault(name, before) != before:
            yield f"{name} was v{now[name]}, and line {line.number} moves it from v{before}"
        now[name] = line.details["version"]
    there = {each.name: each.version for each in aliases.every_alias(connection)}
    said = {name: number for name, number in now.items() if number is not None}
    if said != {name: there.get(name) for name in said} or there.keys() - said.keys() > {aliases.CHAMPION}:
        yield f"the aliases are {there}, and the audit says {said}"
    release = releases.find_open(connection)
    if there.get(aliases.CHALLENGER) != (None if release is None else release.challenger):
        yield f"challenger is {there.get(aliases.CHALLENGER)}, and the open release {release}"


def find_wrong_folders(connection: sa.Connection, folder: Path, pattern: str = "*") -> Iterator[str]:
    kept = [each for each in versions.every(connection) if each.folder is not None and each.pruned is None]
    names = {path.name for path in (folder / "versions").glob(pattern)}
    if names != {each.folder for each in kept}:
        yield f"folders {sorted(names)}, rows {sorted(str(each.folder) for each in kept)}"
    for version in kept:
        try:
            check_version(folder / "versions", version)
        except RunFolderError as error:
            yield str(error)
