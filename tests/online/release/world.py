"""A service whose users meet two versions, with a clock of its own."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import sqlalchemy as sa

from astune.config.schema import AstuneConfig, Config
from astune.online.release.gate import GateResult
from astune.online.release.releaser import Releaser
from astune.online.store import aliases, audit, releases, versions
from astune.online.store.assignments import Assignment, assign, enter, load_plan, unit_of
from astune.online.store.releases import Release
from astune.online.store.versions import AS_CONFIGURED, ModelVersion
from astune.store.database import Database
from astune.store.tables import commits, conversations, feedback, feedback_messages, requests, traffic
from astune.store.tables import releases as table_of_releases
from tests.store.rows import add

HOUR = 3600.0
QUICK = {
    "strategy": "staged",
    "effect": 0.2,
    "min_users": 10,
    "min_hours": 0.5,
    "gate_tasks": 0,
    "stages": [0.4, 0.6, 1.0],
}


def config_of(*, astune: dict[str, Any] | None = None, **release: Any) -> Config:
    return Config(astune=AstuneConfig.model_validate({"online": {"release": QUICK | release}} | (astune or {})))


def play_nothing(release: Release) -> GateResult:
    raise AssertionError("there are no tasks")


class World:
    """`right` is how often the answers of a version are, by number: what users say of them follows. `now` is the
    time."""

    def __init__(self, database: Database, config: Config | None = None) -> None:
        self.database, self.config = database, config or config_of()
        self.now, self.right = 1_000_000.0, {0: 0.7}
        self._draw, self._count = random.Random(1), 0
        with database.writing() as connection:
            versions.register(connection, AS_CONFIGURED)

    def clock(self) -> float:
        return self.now

    def make(self, right: float, parent: int | None = None) -> int:
        """A commit makes a version, of champion unless it is told of which."""
        with self.database.writing() as connection:
            number = versions.newest(connection).number + 1
            figures = {"kl/from_version_before": 0.0}
            made = add(connection, commits, by="timer", state="made", version=number, figures=figures)
            before = aliases.champion(connection).number if parent is None else parent
            versions.add(connection, ModelVersion(number, before, made, f"v{number:06d}"))
        self.right[number] = right
        return number

    def releaser(
        self,
        play: Callable[[Release], GateResult] = play_nothing,
        phase: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] | None = None,
    ) -> Releaser:
        return Releaser(self.config, self.database, play, clock=clock or self.clock, phase=phase)

    def meet(
        self, users: int = 100, *, named: bool = True, rate: bool = True, errors: Mapping[int, int] | None = None
    ) -> None:
        """So many users ask three questions each within an hour, and rate the answers. `errors` are failed requests, by
        version."""
        counts: dict[int, int] = {}
        with self.database.writing() as connection:
            plan = load_plan(connection)
            for user in range(users):
                self.now += HOUR / users
                for _ in range(3):
                    self._count += 1
                    name, conversation = (f"u{user}", f"c{user}") if named else (None, f"c{self._count}")
                    unit, version = unit_of("", name, conversation), plan.champion
                    if plan.release is not None:
                        arm = assign(plan.release, unit)
                        version = plan.release.challenger if arm == "challenger" else version
                        enter(connection, Assignment(plan.release.number, unit, plan.release.stage, arm), self.now)
                    counts[version] = counts.get(version, 0) + 1
                    self._answer(connection, name, conversation, version, rate)
            for version, count in counts.items():
                failed = (errors or {}).get(version, 0)
                minute = int(self.now) // 60
                some = {"requests": count + failed, "errors": failed, "tokens": 9 * count, "seconds": 1.0 * count}
                add(connection, traffic, minute=minute, server="s", version=version, **some)

    def _answer(self, connection: sa.Connection, user: str | None, conversation: str, version: int, rate: bool) -> None:
        msg_id = f"m{self._count}"
        if (
            connection.scalar(sa.select(conversations.c.began).where(conversations.c.conversation_id == conversation))
            is None
        ):
            add(connection, conversations, conversation_id=conversation, user=user)
        its = {"exchange": msg_id, "conversation_id": conversation, "user": user, "version": version}
        add(connection, requests, msg_id=msg_id, number=self._count, answered=self.now, messages=[], **its)
        if rate:
            right = float(self._draw.random() < self.right[version])
            said = {"author": user or "", "kind": "number", "name": "reward", "state": "counts", "value": right}
            number = add(connection, feedback, received=self.now, fingerprint=msg_id, **said)
            add(connection, feedback_messages, feedback_id=number, msg_id=msg_id, place="about")

    def tick(self, releaser: Releaser | None = None) -> Release | None:
        """One step, by a releaser of its own unless one is given."""
        own = releaser or self.releaser()
        try:
            return own.tick()
        finally:
            with self.database.writing() as connection:  # the same users meet the challenger in each run of the tests
                salt = sa.literal("salt of ") + sa.cast(table_of_releases.c.id, sa.Text)
                connection.execute(table_of_releases.update().values(salt=salt))
            if releaser is None:
                own.leave()

    def go_on(self, most: int = 30, users: int = 100) -> Release:
        """Steps with users between them, until the release has ended."""
        releaser = self.releaser()
        for _ in range(most):
            found = self.tick(releaser)
            if found is not None and not found.is_open:
                releaser.leave()
                return found
            self.meet(users)
        raise AssertionError(f"no end: {self.last()}")

    def last(self) -> Release:
        with self.database.reading() as connection:
            return releases.recent(connection, 1)[0]

    def aliases(self) -> dict[str, int]:
        with self.database.reading() as connection:
            return {each.name: each.version for each in aliases.every_alias(connection)}

    def said(self, what: str) -> list[dict[str, Any]]:
        """Details of the audit's lines of a kind."""
        with self.database.reading() as connection:
            return [line.details for line in audit.lines(connection, what=what)]
