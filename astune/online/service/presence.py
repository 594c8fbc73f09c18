"""What a server tells the store beside answers: that it is there, what it counted, and that it loads a version."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import sqlalchemy as sa

from astune.online.store import leases, servers
from astune.online.store.leases import name_of
from astune.online.store.servers import State, Traffic, add_traffic
from astune.store.database import Database

logger = logging.getLogger(__name__)

BEAT_SECONDS = 10.0
"""From one sign of life to the next."""
LEASE_SECONDS = 60.0
"""For which others wait for a server that loads a version and is not heard of."""
LEASE = "load a version"


class Presence:
    """One server over the store, of which `at_once` may load a version at a time. `clock` is in seconds since 1970;
    requests that take more than `slow` seconds are slow."""

    def __init__(self, database: Database, clock: Callable[[], float], *, at_once: int, slow: float) -> None:
        self._database, self._clock, self.slow = database, clock, slow
        self.name = f"{name_of(os.getpid())}/{uuid.uuid4().hex[:8]}"
        self.url: str | None = None
        """Where it answers; None until it does."""
        self.state: State = "serving"
        self.others = 0
        """Servers that are there beside it, as of the last sign of life."""
        self._began = clock()
        self._beaten = -BEAT_SECONDS
        self._told: object = None
        self.totals: dict[int, Traffic] = {}
        self._counts: dict[tuple[int, int], Traffic] = {}
        self._lock = threading.Lock()
        self._watches = [leases.LeaseWatch() for _ in range(at_once)]

    def count(self, version: int, traffic: Traffic) -> None:
        """Count a request that has ended now. `totals` are the counts since the start, by version."""
        key = int(self._clock() // 60), version
        with self._lock:
            self._counts.setdefault(key, Traffic()).add(traffic)
            self.totals.setdefault(version, Traffic()).add(traffic)

    def report(self, versions: list[int]) -> None:
        """Write what was counted since the last time and, if it is time or something changed, that it is there with
        these versions. What cannot be written is kept for the next time."""
        now = self._clock()
        with self._lock:
            counts, self._counts = self._counts, {}
        told = (self.url, self.state, versions)
        beats = self.url is not None and (told != self._told or now >= self._beaten + BEAT_SECONDS)
        if not counts and not beats:
            return

        def write(connection: sa.Connection) -> list[servers.ServerRow]:
            add_traffic(connection, self.name, counts)
            if beats:
                servers.beat(connection, self.name, str(self.url), self._began, self.state, versions, now)
            return servers.every_server(connection) if beats else []

        try:
            found = self._database.write(write)
        except BaseException:
            with self._lock:
                for key, traffic in counts.items():
                    self._counts.setdefault(key, Traffic()).add(traffic)
            raise
        if beats:
            self._told, self._beaten = told, now
            self.others = sum(row.name != self.name and row.is_there(now) for row in found)

    def leave(self) -> None:
        """Write the last counts, and that the server is gone."""
        self.report([])
        if self.url is not None:
            self._database.write(lambda connection: servers.leave(connection, self.name))

    @asynccontextmanager
    async def may_load(self) -> AsyncIterator[bool]:
        """Around the loading of a version: False if as many servers as may load one at once do so."""
        lease = await asyncio.to_thread(self._take)
        if lease is None:
            yield False
            return
        keeping = asyncio.create_task(self._keep(lease))
        try:
            yield True
        finally:
            keeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeping
            await asyncio.to_thread(self._database.write, lambda each: leases.give_back(each, lease, self.name))

    def _take(self) -> str | None:
        def take(connection: sa.Connection) -> str | None:
            for number, watch in enumerate(self._watches):
                lease = f"{LEASE} {number}"
                if leases.take(connection, lease, self.name, self._clock(), LEASE_SECONDS, watch):
                    return lease
            return None

        return self._database.write(take)

    async def _keep(self, lease: str) -> None:
        while True:
            await asyncio.sleep(LEASE_SECONDS / 4)
            try:
                await asyncio.to_thread(
                    self._database.write,
                    lambda each: leases.keep(each, lease, self.name, self._clock(), LEASE_SECONDS),
                )
            except Exception as error:  # at worst another server loads at the same time
                logger.error("the lease %r was not renewed: %s", lease, error)
