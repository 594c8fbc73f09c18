"""Online training while something that it stands on fails: its database, disk, clock, or the process that releases.

Nothing that was acknowledged is lost, no role ends, and all go on by themselves.
"""

from __future__ import annotations

import asyncio
import resource
import sqlite3
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from astune.online.store import leases, releases
from astune.online.store.releases import LEASE, Release
from astune.online.training.commit import LEASE_SECONDS
from astune.store import tables
from astune.store.database import open_database
from tests.attack.forked import shared_seconds
from tests.attack.found import Found
from tests.attack.online import COMMITS, USERS, judge, until_more
from tests.attack.online_clients import Clients
from tests.attack.online_releases import find_wrong_folders
from tests.attack.online_roles import QUICK, Roles

HOUR, AWAY_SECONDS = 3600.0, 60.0
FILE_BYTES = 100_000
"""Less than a checkpoint has."""
Fault = Callable[["Scene"], Awaitable[list[Found]]]
Cut = Callable[[str], AbstractContextManager[None]]


class Scene:
    """Roles at work, and clients that ask and rate."""

    def __init__(self, roles: Roles) -> None:
        self.roles, self.clients = roles, Clients(roles.host, roles.port, users=USERS)

    def read(self, look: Callable[[sa.Connection], Any]) -> Any:
        with closing(open_database(self.roles.store)) as database, database.reading() as connection:
            return look(connection)

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Raises RuntimeError if a role ends, or it does not become so."""
        if not await asyncio.to_thread(self.roles.wait, is_so):
            raise RuntimeError(f"it did not go on: {[self.roles.tail(name) for name in self.roles.running]}")

    async def until_testing(self) -> Release:
        await self.until(lambda: (found := self.read(releases.find_open)) is not None and found.state == "testing")
        found: Release = self.read(releases.find_open)
        return found

    async def until_all_go_on(self) -> None:
        """Users are answered, and the roles renew their leases."""
        now = time.time()
        await until_more(self.clients, 20)
        renewed = sa.select(sa.func.count()).where(tables.leases.c.until > now + LEASE_SECONDS)
        await self.until(lambda: bool(self.read(lambda each: each.scalar(renewed)) >= len(self.roles.names) - 1))


def attack() -> Iterator[Found]:
    """What needs no other server."""
    yield from without_store(None, locked, AWAY_SECONDS)
    yield from with_a_clock_that_is_set()
    yield from with_two_releases()


def _attack(kind: str, fault: Fault, *, sessions: int = 4, **more: Any) -> Iterator[Found]:
    """`more` is for `Roles`."""
    with tempfile.TemporaryDirectory() as name:
        roles = Roles(Path(name), COMMITS, **{"release": QUICK, **more})
        try:
            roles.start(*roles.names)
            roles.wait(roles.is_up)
            scene = Scene(roles)
            yield from asyncio.run(_beside(scene, fault, sessions))
            yield from judge(kind, roles, scene.clients)
        finally:
            roles.close()


async def _beside(scene: Scene, fault: Fault, sessions: int) -> list[Found]:
    work = [asyncio.create_task(scene.clients.session(number, 0)) for number in range(sessions)]
    found = await fault(scene)
    scene.clients.stop.set()
    await asyncio.gather(*work)
    return found


def without_store(
    store: str | None, cut: Callable[[str], AbstractContextManager[None]], seconds: float
) -> Iterator[Found]:
    """`cut` takes the database at an address away."""

    async def fault(scene: Scene) -> list[Found]:
        await scene.until_testing()
        with cut(scene.roles.store):
            await asyncio.sleep(seconds)
        await scene.until_all_go_on()
        failed = dict(scene.clients.ledger.failed)
        told = all(" 503: " in each for each in failed)
        return [Found("database away: requests are told to come back (503)", told, str(failed))]

    return _attack("database away", fault, store=store)


@contextmanager
def locked(store: str) -> Iterator[None]:
    """Another process writes to the file of SQLite and does not end."""
    with closing(sqlite3.connect(store.removeprefix("sqlite:///"), isolation_level=None, timeout=60.0)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        yield


@contextmanager
def stopped(server: Any) -> Iterator[None]:
    """A server of PostgreSQL is stopped and started again."""
    server.stop()
    yield
    server.start()


def without_room(store: str) -> Iterator[Found]:
    """Files of the trainer may not grow; its database is elsewhere."""

    async def fault(scene: Scene) -> list[Found]:
        versions, log = tables.versions.c.version, scene.roles.folder / "logs" / "train.log"
        await until_more(scene.clients, 1)
        pid = scene.roles.pid("train")
        most = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (FILE_BYTES, most[1]))
        await scene.until(lambda: "cannot be written" in log.read_text())
        before = scene.read(lambda each: each.scalar(sa.select(sa.func.max(versions))))
        wrong = scene.read(lambda each: list(find_wrong_folders(each, scene.roles.folder, "v*")))
        resource.prlimit(pid, resource.RLIMIT_FSIZE, most)
        await scene.until(lambda: bool(scene.read(lambda each: each.scalar(sa.select(sa.func.max(versions)))) > before))
        return [Found("disk full: no version is half there", not wrong, str(wrong))]

    return _attack("disk full", fault, store=store, release=None)


def with_a_clock_that_is_set() -> Iterator[Found]:
    """The machine's clock is an hour ahead, an hour behind, and right again, where a stage takes half an hour."""
    ahead = shared_seconds()

    async def fault(scene: Scene) -> list[Found]:
        began, found = await scene.until_testing(), []
        for hours in (1, -1, 0):
            ahead.value = hours * HOUR
            await scene.until_all_go_on()
            now = scene.read(releases.find_open)
            same = now is not None and (now.number, now.stage) == (began.number, began.stage)
            found.append(Found(f"clock set by {hours} hours: no stage is passed", same, str(now and now.reason)))
        with closing(open_database(scene.roles.store)) as database, database.writing() as connection:
            earlier = {"stage_began": tables.releases.c.stage_began - HOUR}
            connection.execute(tables.releases.update().values(earlier))
        await scene.until(lambda: scene.read(lambda each: releases.recent(each, 1)[0]).stage > began.stage)
        return found

    return _attack("clock set", fault, release={**QUICK, "min_hours": 0.5}, ahead=ahead)


def with_two_releases() -> Iterator[Found]:
    """Of two processes that release, the one at work is killed."""

    async def fault(scene: Scene) -> list[Found]:
        scene.roles.start("release 2")
        began = await scene.until_testing()
        pids = {str(scene.roles.pid(name)): name for name in ("release", "release 2")}

        def worker() -> str | None:
            holder = scene.read(lambda each: leases.find_holder(each, LEASE, time.time()))
            return None if holder is None else pids.get(holder.split("/")[1].partition(":")[0])

        first = worker()
        assert first is not None
        scene.roles.kill(first)
        (other,) = {*pids.values()} - {first}
        await scene.until(lambda: worker() == other)
        await scene.until(lambda: scene.read(lambda each: releases.recent(each, 1)[0]).stage > began.stage)
        return [Found("two releases: the second takes over", True, f"{first} was killed, {other} went on")]

    return _attack("two releases", fault)
