"""Who is answered by which version: every server decides alike, from what the store says and a hash.

A unit is what keeps its arm of a release: a user of a client, else a conversation. Shares only widen within a release,
so a unit never goes back to the champion's arm.
"""

from __future__ import annotations

import hashlib
from collections.abc import Set
from dataclasses import dataclass
from typing import Literal

import sqlalchemy as sa

from astune.online.store.aliases import CHALLENGER, CHAMPION, PREVIOUS, every_alias
from astune.online.store.once import insert_once
from astune.online.store.releases import Release, find_open
from astune.online.store.versions import load_tree
from astune.store.tables import assignments, versions

Arm = Literal["champion", "challenger"]


@dataclass(frozen=True)
class TrafficPlan:
    """The versions that are to answer. `path` is the champion and what it was made from; `named` have an alias that
    people gave them."""

    champion: int
    path: tuple[int, ...]
    named: Set[int] = frozenset()
    release: Release | None = None

    @property
    def wanted(self) -> tuple[int, ...]:
        """The versions that new conversations get."""
        return (self.champion,) if self.release is None else (self.champion, self.release.challenger)

    def is_rolled_back(self, version: int) -> bool:
        """True of a version that conversations leave: the champion is not made from it, no release tests it, and
        no alias of people names it."""
        return version not in (*self.wanted, *self.path, *self.named)


@dataclass(frozen=True)
class Assignment:
    """The arm of a unit in a stage of a release."""

    release: int
    unit: str
    stage: int
    arm: Arm


@dataclass(frozen=True)
class LastAnswer:
    """The version that answered last in a conversation, and when, in seconds since 1970."""

    version: int
    time: float


@dataclass(frozen=True)
class Decision:
    """The version that is to answer; `assignment` where a release had a say in it."""

    version: int
    assignment: Assignment | None = None
    kept: bool = False
    """True if the conversation has had it before."""


def assign(release: Release, unit: str) -> Arm:
    """The arm of a unit, the same on every server."""
    return "challenger" if place_of(release.salt, unit) < release.share else "champion"


def place_of(salt: str, unit: str) -> float:
    """The share from which on the unit gets the challenger, drawn evenly from 0 to 1 by a hash.

    >>> round(place_of("salt", "user:shop:ana"), 3)
    0.053
    """
    digest = hashlib.blake2b(f"{salt}{unit}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def unit_of(client: str, user: str | None, conversation_id: str) -> str:
    """The unit that a request belongs to."""
    return f"conversation:{conversation_id}" if user is None else f"user:{client}:{user}"


def decide(plan: TrafficPlan, unit: str, last: LastAnswer | None, now: float, pin_seconds: float) -> Decision:
    """A conversation keeps its version until it has rested for `pin_seconds` or the version is rolled back; then the
    unit's arm decides."""
    if last is not None and now - last.time <= pin_seconds and not plan.is_rolled_back(last.version):
        return Decision(last.version, kept=True)
    release = plan.release
    if release is None:
        return Decision(plan.champion)
    arm = assign(release, unit)
    number = release.challenger if arm == "challenger" else plan.champion
    return Decision(number, Assignment(release.number, unit, release.stage, arm))


def load_plan(connection: sa.Connection) -> TrafficPlan:
    """Read the plan. A release whose champion answers no more has no say in it."""
    aliases = {alias.name: alias.version for alias in every_alias(connection)}
    champion = aliases.get(CHAMPION, 0)
    named = {number for name, number in aliases.items() if name not in (CHAMPION, CHALLENGER, PREVIOUS)}
    held = connection.scalars(sa.select(versions.c.version).where(versions.c.held.is_not(None)))
    release = find_open(connection)
    if release is not None and (release.state != "testing" or release.champion != champion):
        release = None
    return TrafficPlan(champion, tuple(load_tree(connection).path(champion)), frozenset(named) - set(held), release)


def enter(connection: sa.Connection, assignment: Assignment, now: float) -> None:
    """Write the assignment with the unit's first answer in the stage; a later answer changes nothing."""
    row = {"release_id": assignment.release, "unit": assignment.unit, "stage": assignment.stage}
    insert_once(connection, assignments, row | {"arm": assignment.arm, "first": now})
