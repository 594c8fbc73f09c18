"""The role `train`: waits for what starts a commit, and makes it, alone over all processes and machines."""

from __future__ import annotations

import asyncio
import math
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import sqlalchemy as sa

from astune.config.schema import Config
from astune.errors import StoreError
from astune.online.feedback.judging import UnratedJudge
from astune.online.place import versions_folder
from astune.online.training.checkpoint import clean
from astune.online.training.commit import LEASE, LEASE_SECONDS, LeaseLost, Shop, make, plan_now
from astune.online.training.plan import Key, Plan
from astune.online.training.weights import Weights
from astune.store import audit, commits, leases, retention, versions
from astune.store.commits import By, CommitRow, Wanted
from astune.store.database import Database
from astune.store.feedback import states as feedback
from astune.support.processes import name_of
from astune.training.engine import LoadEngine

POLL_SECONDS = 1.0
DELETE_SECONDS = 3600.0
"""From one look for conversations that are too old to the next."""
MOST_BEGINNINGS = 5
"""A commit during which so many trainers died fails, or all that come after would die of it too."""


class Trainer:
    """Makes the commits of the service in `folder`.

        trainer = Trainer(config, load_engine, database, folder)
        row = await trainer.tick()       # the commit that it has made, or None if none is due
        trainer.leave()                  # others may train

    Of several over one database one works. The others wait until it leaves, has died on this machine, or is not heard
    of for `LEASE_SECONDS`.
    `clock` gives seconds since 1970, `phase` is told how far a commit has come (`commit.PHASES`).
    """

    def __init__(
        self,
        config: Config,
        load_engine: LoadEngine,
        database: Database,
        folder: Path,
        *,
        clock: Callable[[], float] = time.time,
        phase: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._config, self._database, self._clock = config, database, clock
        self._rules = config.astune.online.commit
        self._holder = f"{name_of(os.getpid())}/{uuid.uuid4().hex[:8]}"
        self._versions = versions_folder(folder)
        weights = Weights(config.astune, load_engine, self._versions)
        self._shop = Shop(config, database, weights, self._versions, self._holder, clock, phase)
        self._unrated = UnratedJudge(config.astune, database, clock=clock)
        self._since = clock()
        self._deleted = -math.inf
        self._is_holder = False
        self._fruitless: tuple[frozenset[Key], int] | None = None
        """What the last commit looked at first, and how many came after, if it made no version: there is no use in
        looking at just that again."""
        self._too_few: tuple[int, int] | None = None
        """What was rated when it was too little for a commit, and only time could not change that."""

    async def run(self, told: Callable[[CommitRow], None]) -> None:
        """Go on until cancelled. `told` is told of every commit."""
        judging = asyncio.create_task(self._judge_unrated())
        try:
            while True:
                if judging.done():
                    judging.result()  # the store's error
                row = await self.tick()
                if row is None:
                    await asyncio.sleep(POLL_SECONDS)
                else:
                    told(row)
        finally:
            judging.cancel()
            self.leave()

    async def tick(self) -> CommitRow | None:
        """Make a commit if one is due and nobody else trains; the row as it is afterwards."""
        row = self._take_up()
        self._delete_old()
        if row is None:
            return None
        if self._begun_too_often(row):
            return self._given_up(row)
        ready = self._ready(row.wanted)  # before: what is rated meanwhile the commit does not look at
        try:
            with self._heartbeat():
                done = await make(self._shop, row)
        except LeaseLost:
            self._is_holder = False
            return None
        self._fruitless = None if done.state == "made" else ready
        if done.state == "made":
            with self._database.writing() as connection:
                if leases.keep(connection, LEASE, self._holder, self._clock(), LEASE_SECONDS):
                    self._clean_folders(connection)
        return done

    async def _judge_unrated(self) -> None:
        """Of several trainers the one at work has what nobody rated judged, beside its commits."""
        while True:
            if self._is_holder:
                await self._unrated.judge_unrated()
            await asyncio.sleep(POLL_SECONDS)

    def leave(self) -> None:
        """Give the lease back; what was under way waits for the next trainer."""
        if self._is_holder:
            self._is_holder = False
            with self._database.writing() as connection:
                if leases.keep(connection, LEASE, self._holder, self._clock(), LEASE_SECONDS):
                    commits.put_back(connection)
                    leases.give_back(connection, LEASE, self._holder)

    def renew(self) -> None:
        """Say that it is still at work."""
        self._database.write(lambda each: leases.keep(each, LEASE, self._holder, self._clock(), LEASE_SECONDS))

    def _take_up(self) -> CommitRow | None:
        """The commit to make now. Who gets the lease cleans up after the one before."""
        now = self._clock()
        self._is_holder, row = self._database.write(partial(self._taken_up, now=now))
        return row

    def _taken_up(self, connection: sa.Connection, now: float) -> tuple[bool, CommitRow | None]:
        """Whether it has the lease, and the commit to make."""
        if not leases.take(connection, LEASE, self._holder, now, LEASE_SECONDS):
            return False, None
        if not self._is_holder:
            self._clean_up(connection, now)
        asked = commits.with_state(connection, "asked")
        by = None if asked else self._due(connection, now)
        if by is not None:
            commits.ask(connection, by, now)
            asked = commits.with_state(connection, "asked")
        return True, asked[0] if asked else None

    def _delete_old(self) -> None:
        """What is older than `astune.online.keep_days`, every `DELETE_SECONDS`."""
        days, now = self._config.astune.online.keep_days, self._clock()
        if days is None or not self._is_holder or now < self._deleted + DELETE_SECONDS:
            return
        self._deleted = now
        with self._heartbeat():
            retention.expire(self._database, days, now)

    def _clean_up(self, connection: sa.Connection, now: float) -> None:
        back = commits.put_back(connection)
        deleted = self._clean_folders(connection)
        if back or deleted:
            audit.say(connection, "train", "cleaned up", None, now=now, commits=back, folders=deleted)

    def _clean_folders(self, connection: sa.Connection) -> list[str]:
        """Delete the checkpoints that are neither the newest `astune.trainer.keep_checkpoints` nor, as the service may
        be loading it, the one before the newest; and what no row names."""
        most = max(self._config.astune.trainer.keep_checkpoints, 2)
        kept = {version.folder for version in versions.every(connection)[-most:] if version.folder is not None}
        return clean(self._versions, kept)

    def _due(self, connection: sa.Connection, now: float) -> By | None:
        """What makes a commit due that nobody has asked for."""
        before = commits.recent(connection, 1)
        since = max([self._since, *(row.ended or row.asked for row in before)])
        rules = self._rules
        timer = rules.every_seconds is not None and now >= since + rules.every_seconds
        if not timer and rules.every_episodes is None:
            return None
        feedback.settle(connection, self._config.astune.online.feedback, now)
        rated = feedback.rated(connection)
        if rated == self._too_few:
            return None
        base = versions.newest(connection).number
        plan = plan_now(connection, self._config, Wanted(), base, now)
        self._too_few = rated if not plan.count and not plan.waiting["for_siblings"] else None
        if not plan.count or _looked_at(plan) == self._fruitless:
            return None
        if rules.every_episodes is not None and plan.count >= min(rules.every_episodes, rules.max_episodes):
            return "episodes"
        return "timer" if timer else None

    def _ready(self, wanted: Wanted) -> tuple[frozenset[Key], int]:
        with self._database.reading() as connection:
            base = versions.newest(connection).number
            return _looked_at(plan_now(connection, self._config, wanted, base, self._clock()))

    def _begun_too_often(self, row: CommitRow) -> bool:
        with self._database.reading() as connection:
            begun = audit.lines(connection, subjects=[str(row.number)], what="commit begun")
            return sum(1 for _ in begun) >= MOST_BEGINNINGS

    def _given_up(self, row: CommitRow) -> CommitRow:
        said = f"{MOST_BEGINNINGS} trainers died in it; what was rated waits for another commit"
        now = self._clock()
        with self._database.writing() as connection:
            commits.end(connection, row.number, "failed", now, {}, error=said)
            audit.say(connection, "train", "commit failed", str(row.number), now=now, why=said)
            return commits.after(connection, row.number - 1)[0]

    @contextmanager
    def _heartbeat(self) -> Iterator[None]:
        """Renew the lease in a thread of its own, as updates compute in this one."""
        done = threading.Event()

        def beat() -> None:
            while not done.wait(LEASE_SECONDS / 6):
                try:
                    self.renew()
                except (sa.exc.SQLAlchemyError, StoreError):  # whether the lease was kept, the commit asks
                    continue

        thread = threading.Thread(target=beat, name="astune-lease", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


def _looked_at(plan: Plan) -> tuple[frozenset[Key], int]:
    return frozenset(item.key for item in plan.items), plan.waiting["for_a_later"]
