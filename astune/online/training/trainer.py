"""The role `train`: waits for what starts a commit, and makes it, alone over all processes and machines."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import math
import os
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import sqlalchemy as sa

from astune.config.schema import Config
from astune.errors import RunFolderError, StoreError
from astune.online.clock import SteadyClock
from astune.online.place import keep_file, versions_folder
from astune.online.store import audit, commits, leases, registry, retention, succession, versions
from astune.online.store.commits import By, CommitRow, Wanted
from astune.online.store.feedback import states as feedback
from astune.online.store.leases import name_of
from astune.online.training.checkpoint import clean
from astune.online.training.commit import LEASE, LEASE_SECONDS, CommitSetup, LeaseLost, make
from astune.online.training.commit_input import plan_now
from astune.online.training.following import FollowingJudge
from astune.online.training.imports import IMPORT
from astune.online.training.judging import UnratedJudge
from astune.online.training.plan import Learnable, Plan
from astune.online.training.weights import Weights
from astune.store.database import Database, reason
from astune.training.engine import LoadEngine

logger = logging.getLogger(__name__)

POLL_SECONDS = 1.0
RETRY_SECONDS = 5.0
"""From one attempt to write to the next, where the store or the disk took nothing."""
DISK_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
FAILED_SECONDS = 60.0
"""After a commit that failed; one that somebody asks for is made at once."""
DELETE_SECONDS = 3600.0
"""From one look for conversations that are too old to the next."""
OF_ANOTHER = "made by a trainer that moves no alias"
MOST_BEGINNINGS = 5
"""A commit during which so many trainers died fails, or all that come after would die of it too."""


class Trainer:
    """Makes the commits of the service in `folder`.

        trainer = Trainer(config, load_engine, database, folder)
        row = await trainer.tick()       # the commit that it has made, or None if none is due
        trainer.leave()                  # others may train

    Of several over one database one works. The others wait until it leaves, has died on this machine, or is not heard
    of for `LEASE_SECONDS`.
    `clock` gives seconds since 1970, by default as a `SteadyClock`; `phase` is told how far a commit has come
    (`commit.PHASES`).
    """

    def __init__(
        self,
        config: Config,
        load_engine: LoadEngine,
        database: Database,
        folder: Path,
        *,
        clock: Callable[[], float] | None = None,
        phase: Callable[[str], None] = lambda _: None,
    ) -> None:
        clock = clock or SteadyClock()
        self._config, self._database, self._clock = config, database, clock
        self._rules, self._release = config.astune.online.commit, config.astune.online.release
        self._holder = f"{name_of(os.getpid())}/{uuid.uuid4().hex[:8]}"
        self._versions, self._keep = versions_folder(folder), keep_file(folder)
        weights = Weights(config.astune, load_engine, self._versions)
        self._setup = CommitSetup(config, database, weights, self._versions, self._holder, clock, phase)
        self._unrated = UnratedJudge(config.astune, database, clock=clock)
        self._following = FollowingJudge(config.astune, database, clock=clock)
        self._since = clock()
        self._before: list[tuple[int, float]] = []
        """The last commit, and when it ended."""
        self._deleted = -math.inf
        self._silent = 0.0
        """Seconds in which nothing was written, and that were told of."""
        self._is_holder = False
        self._others = leases.LeaseWatch()
        self._fruitless: Learnable | None = None
        """All there was for the last commit, if it found nothing to learn: there is no use in looking at that again,
        nor at more that says the same."""
        self._too_few: tuple[int, int] | None = None
        """The ratings when they were too few for a commit, and only time could not change that."""

    async def run(self, told: Callable[[CommitRow], None]) -> None:
        """Go on until cancelled. `told` is told of every commit. Where the store or the disk takes nothing, that is
        logged once, and all is tried again until they do."""
        judging = asyncio.create_task(self._judge_unrated())
        untold: CommitRow | None = None
        is_refused = False
        try:
            while True:
                try:
                    if judging.done():
                        ended, judging = judging, asyncio.create_task(self._judge_unrated())
                        ended.result()  # the store's error
                    row = await self.tick()
                    untold = row or untold
                    if untold is not None:
                        _tell(told, untold)
                        untold = None
                    if is_refused:
                        logger.warning("what is written is taken again: training goes on")
                    is_refused, pause = False, POLL_SECONDS if row is None else 0.0
                except (OSError, StoreError, sa.exc.OperationalError, sa.exc.InterfaceError) as error:
                    if isinstance(error, OSError) and error.errno not in DISK_ERRNOS:
                        raise
                    if not is_refused:
                        logger.warning("training waits, as nothing can be written: %s. Nothing is lost", reason(error))
                    self._is_holder = False  # whoever takes the lease again takes up what was under way
                    is_refused, pause = True, RETRY_SECONDS
                await asyncio.sleep(pause)
        finally:
            judging.cancel()
            with contextlib.suppress(StoreError, sa.exc.SQLAlchemyError):  # others wait until it is not heard of
                self.leave()

    async def tick(self) -> CommitRow | None:
        """Make a commit if one is due and nobody else trains; the row as it is afterwards."""
        now = self._clock()
        self._is_holder, row = self._database.write(partial(self._find_commit, now=now))
        self._delete_old()
        if row is None:
            return None
        if self._has_begun_too_often(row):
            return self._give_up(row)
        ready = self._look_ahead(row.wanted)  # before: what is rated meanwhile the commit does not look at
        try:
            with self._heartbeat():
                done = await make(self._setup, row)
        except LeaseLost:
            self._is_holder = False
            return None
        self._fruitless = ready if done.state == "empty" else None
        if done.state == "made":
            with self._database.writing() as connection:
                if leases.keep(connection, LEASE, self._holder, self._clock(), LEASE_SECONDS):
                    self._clean_folders(connection)
        return done

    async def _judge_unrated(self) -> None:
        """Let the judges score exchanges beside the commits, while this trainer has the lease."""
        while True:
            if self._is_holder:
                await asyncio.gather(self._following.judge_due(), self._unrated.judge_due())
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

    def _find_commit(self, connection: sa.Connection, now: float) -> tuple[bool, CommitRow | None]:
        """Take the lease and find the commit to make now: True if it has the lease, and the commit. A new holder cleans
        up after the one before."""
        if not leases.take(connection, LEASE, self._holder, now, LEASE_SECONDS, self._others):
            return False, None
        if not self._is_holder:
            back = commits.put_back(connection)
            deleted = self._clean_folders(connection)
            if back or deleted:
                audit.say(connection, "train", "cleaned up", None, now=now, commits=back, folders=deleted)
        every = self._config.astune.online.serve.every_commits
        if self._release.strategy == "at_once":
            succession.promote_made(connection, every, now, OF_ANOTHER)
        elif self._release.while_testing == "wait" and succession.is_testing(connection, every):
            return True, None
        asked = commits.with_state(connection, "asked")
        by = None if asked else self._due(connection, now)
        if by is not None:
            commits.ask(connection, by, now)
            asked = commits.with_state(connection, "asked")
        return True, asked[0] if asked else None

    def _delete_old(self) -> None:
        """Delete everything older than `astune.online.keep_days`, every `DELETE_SECONDS`."""
        days, now = self._config.astune.online.keep_days, self._clock()
        if days is None or not self._is_holder or now < self._deleted + DELETE_SECONDS:
            return
        self._deleted = now
        with self._database.reading() as connection:
            silent = retention.silence(connection, days, now)
        if silent > self._silent:
            logger.warning(
                "nothing was written into the store for %.1f days, as if a clock had been set ahead: they do not "
                "count for astune.online.keep_days. If they have passed, delete by age once, and they do: "
                "astune online delete --older-than %gd --conf ...",
                silent / retention.DAY,
                days,
            )
        self._silent = silent
        with self._heartbeat():
            retention.expire(self._database, days, now, silent=silent)
            self._database.write(partial(retention.show_life, now=now))

    def _clean_folders(self, connection: sa.Connection) -> list[str]:
        """Delete the checkpoints that nothing needs (`registry.find_needed`), and what no row names."""
        if self._keep.exists():
            logger.warning("old versions are not deleted while %s is there", self._keep)
            return []
        config, now = self._config.astune, self._clock()
        needed = registry.find_needed(connection, config.online, config.trainer.keep_checkpoints, now)
        if leases.find_holder(connection, IMPORT, now) is not None:
            return []
        registry.mark_pruned(connection, registry.find_unneeded(connection, needed), now, "train")
        return clean(self._versions, {each.folder for each in versions.every(connection) if each.pruned is None})

    def _due(self, connection: sa.Connection, now: float) -> By | None:
        """The rule that makes a commit due for which nobody has asked; None if none does."""
        last = commits.recent(connection, 1)
        before = [(row.number, row.ended or row.asked) for row in last]
        if before != self._before:  # by a clock that was ahead it may have ended later than now
            self._before = before
            self._since = max([self._since, *(min(ended, now) for _, ended in before)])
        rules = self._rules
        if last and last[0].state == "failed" and now < self._since + FAILED_SECONDS:
            return None
        timer = rules.every_seconds is not None and now >= self._since + rules.every_seconds
        if not timer and rules.every_episodes is None:
            return None
        feedback.settle(connection, self._config.astune.online.feedback, now)
        rated = feedback.count_rated(connection)
        if rated == self._too_few:
            return None
        plan = self._plan(connection, Wanted(), now)
        self._too_few = rated if not plan.count and not plan.waiting["for_siblings"] else None
        if not plan.count or (self._fruitless is not None and plan.gist.adds_nothing_to(self._fruitless)):
            return None
        looked_at = self._fruitless.keys if self._fruitless is not None else frozenset()
        new = len({item.key for item in plan.items} - looked_at)
        if rules.every_episodes is not None and new >= min(rules.every_episodes, rules.max_episodes):
            return "episodes"
        return "timer" if timer else None

    def _look_ahead(self, wanted: Wanted) -> Learnable:
        with self._database.reading() as connection:
            return self._plan(connection, wanted, self._clock()).gist

    def _plan(self, connection: sa.Connection, wanted: Wanted, now: float) -> Plan:
        base = succession.base_of(connection, self._config.astune.online)
        return plan_now(connection, self._config, wanted, base.number, now)

    def _has_begun_too_often(self, row: CommitRow) -> bool:
        with self._database.reading() as connection:
            begun = audit.lines(connection, subjects=[str(row.number)], what="commit begun")
            return sum(1 for _ in begun) >= MOST_BEGINNINGS

    def _give_up(self, row: CommitRow) -> CommitRow:
        said = f"{MOST_BEGINNINGS} trainers died in it; what was rated waits for another commit"
        now = self._clock()
        with self._database.writing() as connection:
            commits.end(connection, row.number, "failed", now, {}, error=said)
            audit.say(connection, "train", "commit failed", str(row.number), now=now, why=said)
            return commits.after(connection, row.number - 1)[0]

    def _heartbeat(self) -> AbstractContextManager[None]:
        """Renew the lease beside the work, as updates compute in this thread."""
        return leases.renewing(self._database, LEASE, self._holder, self._clock, LEASE_SECONDS)


def _tell(told: Callable[[CommitRow], None], row: CommitRow) -> None:
    """Call `told`; raises StoreError if the disk cannot be written."""
    try:
        told(row)
    except RunFolderError as error:
        raise StoreError(str(error)) from error
