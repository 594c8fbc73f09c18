"""Send what must arrive: feedback and records, with patience and in the background."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Hashable

import anyio

from astune.online.agent.client import OnlineClient, ServiceAway, ServiceError
from astune.online.agent.counts import CauseCounts
from astune.online.agent.spool import OutboxEntry, Spool
from astune.online.wire import Body

logger = logging.getLogger(__name__)

MOST_WAITING = 10_000
"""Most entries that wait. Further ones are lost, and counted."""
_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 30.0


class Outbox:
    """Sends entries to the service, one after the other, until each is acknowledged or refused.

    While the service is away it pauses, longer each time up to half a minute, or as long as the service asks. With a
    spool a entry is on disk before `put` returns, so that it outlives this process. It belongs to one event loop.

    A record takes the place of an earlier one of the same conversation that still waits, so that none arrives after a
    later one. Entries that are held for something are sent one after the other once that is released.

    Invariant: `put` = `sent` + `superseded` + `refused.total` + `lost` + `waiting`, with what the spool held counted as
    put, and what `close` left in the spool still waiting.
    """

    def __init__(self, client: OnlineClient, spool: Spool | None = None) -> None:
        self._client = client
        self._spool = spool
        self._entries: deque[OutboxEntry] = deque()
        self._held: dict[Hashable, list[OutboxEntry]] = {}
        self._came = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._hurry = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.put = self.sent = self.superseded = self.lost = 0
        self.refused = CauseCounts()
        self.away = CauseCounts()
        """Attempts that failed and will be repeated."""

    @property
    def waiting(self) -> int:
        return len(self._entries) + sum(map(len, self._held.values()))

    def start(self) -> None:
        """Begin to send, first the entries that are in the spool."""
        for entry in self._spool.read() if self._spool else ():
            self.put += 1
            self._take(entry)
        for said in self._spool.broken if self._spool else ():
            logger.warning("a file of the spool is left alone: %s", said)
        self._task = asyncio.create_task(self._send_all(), name="astune-outbox")

    async def add(self, path: str, body: Body, *, held_for: Hashable = None) -> None:
        """Take an entry; one that is `held_for` something is not sent before that is released. It is lost only if
        `MOST_WAITING` wait already."""
        entry = OutboxEntry(path, body)
        self.put += 1
        if self.waiting >= MOST_WAITING:
            self.lost += 1
            return
        if self._spool is not None:
            try:
                await asyncio.to_thread(self._spool.write, entry)
            except OSError as error:
                logger.warning("feedback is kept in memory only, the spool cannot be written: %s", error)
        if held_for is None:
            self._take(entry)
        else:
            self._held.setdefault(held_for, []).append(entry)

    def release(self, held_for: Hashable) -> None:
        """Send the entries that are held for it, if there are any."""
        for entry in self._held.pop(held_for, ()):
            self._take(entry)

    def _take(self, entry: OutboxEntry) -> None:
        if entry.about is not None:
            for earlier in self._entries:
                earlier.superseded = earlier.superseded or earlier.about == entry.about
        self._entries.append(entry)
        self._empty.clear()
        self._came.set()

    async def close(self, seconds: float) -> None:
        """Send all waiting and held entries, for at most `seconds`. The rest stays in the spool, or is lost without
        one."""
        if self._task is None:
            return
        for held_for in list(self._held):
            self.release(held_for)
        self._hurry.set()
        with anyio.move_on_after(seconds):
            await self._empty.wait()
        self._task.cancel()
        await asyncio.wait([self._task])
        self._task = None
        left = [entry for entry in self._entries if entry.file is None]
        self.lost += len(left)
        if left:
            logger.error("%d bodies for %s are lost: it did not take them in time", len(left), self._client.endpoint)
        if kept := len(self._entries) - len(left):
            logger.warning("%d bodies for %s wait in the spool", kept, self._client.endpoint)
        self._entries = deque(entry for entry in self._entries if entry.file is not None)

    async def _send_all(self) -> None:
        failures = 0
        while True:
            while not self._entries:
                self._empty.set()
                self._came.clear()
                await self._came.wait()
            entry = self._entries[0]
            if entry.superseded:
                self.superseded += 1
                await self._forget(self._entries.popleft())
                continue
            try:
                await self._client.send(entry.path, entry.body)
            except ServiceAway as error:
                self.away.add(error)
                self._entries.rotate(-1)  # so that one that never gets through does not hold up the others
                failures += 1
                await self._pause(error, failures)
                continue
            except ServiceError as error:
                self.refused.add(error)
                logger.warning("refused, and not sent again: %s", error)
            else:
                self.sent += 1
            failures = 0
            await self._forget(self._entries.popleft())

    async def _forget(self, entry: OutboxEntry) -> None:
        if self._spool is not None:
            try:
                await asyncio.to_thread(self._spool.remove, entry)
            except OSError as error:
                logger.warning("a file of the spool cannot be removed, and is sent again some day: %s", error)

    async def _pause(self, error: ServiceAway, failures: int) -> None:
        """Wait before the next attempt; shorter once `close` was called."""
        seconds = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(failures - 1, 10))
        seconds = error.after if error.after is not None else seconds * random.uniform(0.5, 1.0)
        if failures == 1:
            logger.warning("feedback waits, and is tried again: %s", error)
        if self._hurry.is_set():
            await asyncio.sleep(min(seconds, _FIRST_PAUSE))
            return
        with anyio.move_on_after(seconds):
            await self._hurry.wait()
