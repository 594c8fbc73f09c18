"""The role `release`: brings a new version to the users stage by stage, or back, alone over all processes and machines.

Each step is one transaction that keeps the lease. Killed anywhere, the next process goes on from what the store says.
"""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import sqlalchemy as sa

from astune.config.online import ReleaseConfig
from astune.config.schema import Config
from astune.errors import StoreError
from astune.online.clock import SteadyClock
from astune.online.release.figures import ReleaseFigures, figures_of
from astune.online.release.gate import SKIPPED, GateResult, PlayGate, has_gate
from astune.online.release.rules import HOUR, Ruling, Users, decide
from astune.online.store import aliases, leases, releases, succession, versions
from astune.online.store.releases import LEASE, Ended, Release
from astune.store.database import Database, reason
from astune.store.tables import assignments

logger = logging.getLogger(__name__)

LEASE_SECONDS = 30.0
RETRY_SECONDS = 5.0
READING_SHARE = 0.1
"""The part of the time that reading figures may take: at 100,000 answers one reading takes seconds."""
MOST_LOOKS = 200
"""Looks that a release keeps; of more every second one stays."""


class Releaser:
    """Tests versions over the store of a service.

        releaser = Releaser(config, database, play_gate)
        release = releaser.tick()       # the release as it is afterwards, or None if none is open
        releaser.leave()                # others may release

    `clock` gives seconds since 1970. `phase` is told what was just written, or is about to be.
    """

    def __init__(
        self,
        config: Config,
        database: Database,
        play_gate: PlayGate,
        *,
        clock: Callable[[], float] | None = None,
        phase: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._config, self._database, self._play = config, database, play_gate
        self._clock, self._phase = clock or SteadyClock(), phase
        self._rules = config.astune.online.release
        self._holder = f"{leases.name_of(os.getpid())}/{uuid.uuid4().hex[:8]}"
        self._others = leases.LeaseWatch()
        self._read: tuple[tuple[int, int], ReleaseFigures] | None = None
        """The release and stage of the last figures, and those."""
        self._read_again = 0.0

    def run(self, told: Callable[[Release | None], None]) -> None:
        """Go on until Ctrl-C. `told` is told of each look. Where the store takes nothing, that is logged once, and all
        is tried again until it does."""
        is_refused = False
        try:
            while True:
                try:
                    told(self.tick())
                    if is_refused:
                        logger.warning("the store answers again: releases go on")
                    is_refused, pause = False, self._rules.look_seconds
                except (StoreError, sa.exc.OperationalError, sa.exc.InterfaceError) as error:
                    if not is_refused:
                        logger.warning("releases wait: %s. Users are answered as before", reason(error))
                    is_refused, pause = True, min(RETRY_SECONDS, self._rules.look_seconds)
                time.sleep(pause)
        finally:
            self.leave()

    def leave(self) -> None:
        """Give the lease back; an open release stays as it is."""
        try:
            self._database.write(lambda each: leases.give_back(each, LEASE, self._holder))
        except (StoreError, sa.exc.SQLAlchemyError):  # others wait until it is not heard of
            logger.warning("the lease of releases could not be given back")

    def tick(self) -> Release | None:
        """Do the next step of the open release, or begin one for a version that was made. None where there is nothing
        to do, or another process does it."""
        is_holder, release = self._database.write(self._take)
        if not is_holder or release is None:
            return release
        with leases.renewing(self._database, LEASE, self._holder, self._clock, LEASE_SECONDS):
            rules = ReleaseConfig.model_validate(release.settings)
            if release.state == "testing":
                return self._look(release, rules)
            if release.state == "staged" and has_gate(self._config):
                return self._write(partial(self._advance, release, "gate", "held-out tasks are played"))
            if release.state == "staged":
                return self._judge_gate(release, rules, GateResult("passed", [SKIPPED]))
            return self._judge_gate(release, rules, self._play(release))

    def _write(self, step: Callable[[sa.Connection], Release]) -> Release:
        """Do a step in a transaction that keeps the lease. Raises StoreError where another process has it."""

        def write(connection: sa.Connection) -> Release:
            if not leases.keep(connection, LEASE, self._holder, self._clock(), LEASE_SECONDS):
                raise StoreError("another process has taken over releases, as this one was not heard of for too long")
            done = step(connection)
            self._phase("writing")
            return done

        done = self._database.write(write)
        self._phase(done.state)
        return done

    def _take(self, connection: sa.Connection) -> tuple[bool, Release | None]:
        """Take the lease, find the open release, and begin one if none is open and a version waits."""
        now = self._clock()
        if not leases.take(connection, LEASE, self._holder, now, LEASE_SECONDS, self._others):
            return False, releases.find_open(connection)
        release = releases.find_open(connection)
        waiting = succession.find_untested(connection, self._config.astune.online.serve.every_commits)
        if release is not None:
            if aliases.champion(connection).number != release.champion:
                why = f"v{aliases.champion(connection).number} became champion meanwhile"
                releases.end_release(connection, release.challenger, state="held", reason=why, role="release", now=now)
                return True, None
            if waiting is None or waiting.number <= release.challenger or self._rules.while_testing != "replace":
                return True, release
            why = f"replaced by v{waiting.number} (astune.online.release.while_testing)"
            releases.end_release(connection, release.challenger, state="held", reason=why, role="release", now=now)
        if waiting is None or now < self._find_cooled_down(connection, now):
            return True, None
        settings = self._rules.model_dump(mode="json")
        return True, releases.open_release(connection, waiting.number, settings, role="release", now=now)

    def _find_cooled_down(self, connection: sa.Connection, now: float) -> float:
        """The time from which the next release may begin. An end by a clock that was ahead is not waited for."""
        last = next((each for each in releases.recent(connection, 1) if each.state != "promoted"), None)
        if last is None or last.ended is None or (last.reason or "").startswith("replaced by"):
            return 0.0
        pause = HOUR * self._rules.cool_down_hours
        return 0.0 if last.ended > now + pause else last.ended + pause

    def _judge_gate(self, release: Release, rules: ReleaseConfig, found: GateResult) -> Release:
        if found.verdict == "passed":
            why = "; ".join(found.lines)
            return self._write(partial(self._enter_stage, release, rules, 0, why, _with_gate(release, found)))
        what: Ruling = (
            Ruling("roll_back", "; ".join(["lost the gate", *found.lines]))
            if found.verdict == "worse"
            else Ruling("hold", "; ".join(["the gate tells nothing", *found.lines]))
        )
        return self._write(partial(self._end, release, rules, what, _with_gate(release, found)))

    def _enter_stage(
        self,
        release: Release,
        rules: ReleaseConfig,
        stage: int,
        why: str,
        figures: dict[str, Any],
        connection: sa.Connection,
    ) -> Release:
        """Let the users of a stage meet it."""
        noted, share = releases.note(connection, release, figures, None), rules.stages[stage]
        return releases.advance(connection, noted, "testing", stage=stage, share=share, why=why, now=self._clock())

    def _advance(self, release: Release, state: releases.Open, why: str, connection: sa.Connection) -> Release:
        now = self._clock()
        return releases.advance(connection, release, state, stage=release.stage, share=release.share, why=why, now=now)

    def _look(self, release: Release, rules: ReleaseConfig) -> Release:
        now = self._clock()
        if now < release.stage_began:  # by a clock that was ahead: what users said since is before its begin
            logger.warning("stage %d began by a clock that was ahead: it begins now", release.stage + 1)
            return self._write(lambda each: releases.begin_again(each, release, now))
        with self._database.reading() as connection:
            figures = self._read_figures(connection, release, now)
            users = _count_users(connection, release)
        decision = decide(release, figures, users, rules, now)
        noted = _with_look(release, figures, decision, now)
        if decision.what == "wait":
            return self._write(lambda each: releases.note(each, release, noted, decision.why))
        if decision.what == "widen":
            stage, why = release.stage + 1, decision.why
            return self._write(partial(self._enter_stage, release, rules, stage, why, noted))
        return self._write(partial(self._end, release, rules, decision, noted))

    def _read_figures(self, connection: sa.Connection, release: Release, now: float) -> ReleaseFigures:
        """The figures of a release; within a stage those of the last reading, for as long as that was too dear to be
        done again (`READING_SHARE`)."""
        stage = release.number, release.stage
        if self._read is None or self._read[0] != stage or now >= self._read_again:
            self._read = stage, figures_of(connection, release.number, self._config.astune.online.feedback)
            done = self._clock()
            self._read_again = done + (done - now) * (1.0 / READING_SHARE - 1.0)
        return self._read[1]

    def _end(
        self,
        release: Release,
        rules: ReleaseConfig,
        decision: Ruling,
        figures: dict[str, Any],
        connection: sa.Connection,
    ) -> Release:
        """End it, and do what follows for the version."""
        number, why, now = release.challenger, decision.why, self._clock()
        releases.note(connection, release, figures, None)
        ends: dict[str, Ended] = {"promote": "promoted", "hold": "held", "roll_back": "rolled_back"}
        state = ends[decision.what]
        releases.end_release(connection, number, state=state, reason=why, role="release", now=now)
        version = versions.find(connection, number)
        assert version is not None
        if decision.what == "promote":
            aliases.promote(connection, number, role="release", why=why, now=now)
        elif decision.what == "hold":
            succession.hold(connection, version, role="release", why=why, now=now)
        else:
            champion = aliases.champion(connection)
            forget = rules.forget
            succession.roll_back(connection, version, champion, forget=forget, role="release", why=why, now=now)
        return replace(release, state=state, reason=why, ended=now, share=0.0, figures=figures)


def _count_users(connection: sa.Connection, release: Release) -> Users:
    its = (assignments.c.release_id == release.number, assignments.c.stage == release.stage)
    challengers = sa.select(sa.func.count()).where(*its, assignments.c.arm == "challenger")
    named = connection.scalar(challengers.where(assignments.c.unit.startswith("user:"))) or 0
    return Users(named, (connection.scalar(challengers) or 0) - named)


def _with_gate(release: Release, gate: GateResult) -> dict[str, Any]:
    return {**release.figures, "gate": {"verdict": gate.verdict, "lines": list(gate.lines)}}


def _with_look(release: Release, figures: ReleaseFigures, decision: Ruling, now: float) -> dict[str, Any]:
    """The figures of a release with one more look."""
    found = figures.primary.found
    look = {"time": now, "stage": release.stage, "users": list(figures.units), "decision": decision.what}
    look["alarms"] = list(figures.alarms)
    look["notes"] = list(figures.notes)
    look["breaches"] = [each.name for each in figures.breaches]
    if found is not None:
        names = ("champion", "challenger", "low", "high", "p")
        look["metric"] = {name: getattr(found, name) for name in names}
    looks = [*release.figures.get("looks", []), look]
    return {**release.figures, "looks": looks[::-2][::-1] if len(looks) > MOST_LOOKS else looks}
