"""Readiness of the service: it can write to its store and answer."""

from __future__ import annotations

import asyncio
import shutil
import time
import uuid
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from astune.clients.single_flight import SingleFlight
from astune.errors import AstuneError, name_error
from astune.online.service.versions import ServedVersions
from astune.online.store.audit import say
from astune.store.tables import audit
from astune.store.writer import Writer
from astune.types import Sampling

LOOK_SECONDS = 3.0
"""A part that needs longer is not ready."""
KNOWN_SECONDS = 1.0
"""Seconds for which a look is used again: callers need no token, and each look writes to the disk."""
ROOM = 2**14
"""Bytes that a look writes, as many as a long answer has."""
LEAST_FREE_MIB = 32
"""A database reuses room that it has, so that a write may succeed where the next larger one does not."""


@dataclass(frozen=True)
class Look:
    """The state of each part, `ok` or a reason, found at the time `at`."""

    parts: dict[str, str]
    at: float

    @property
    def is_ready(self) -> bool:
        return set(self.parts.values()) == {"ok"}


class Readiness:
    """The readiness of a service in one event loop. Each look writes to the store, asks the model for a token, and
    checks the free space of `folders` and the SQLite database `file`."""

    def __init__(
        self,
        writer: Writer,
        versions: ServedVersions,
        folders: set[Path],
        file: Path | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._writer, self._versions, self._clock = writer, versions, clock
        self._folders, self._file = folders, file
        self._name = f"ready {uuid.uuid4().hex}"
        self._under_way: dict[str, asyncio.Task[None]] = {}
        self._flights: SingleFlight[Look] = SingleFlight()
        self._last: Look | None = None

    async def look(self) -> Look:
        """Look at the parts now. One look is under way at a time, whatever the number of callers."""
        if self._last is None or self._clock() - self._last.at >= KNOWN_SECONDS:
            self._last, _ = await self._flights.join("", self._look)
        return self._last

    async def _look(self) -> Look:
        answers = self._versions.answers
        tasks = {"store": self._begin("store", self._write), "disk": self._begin("disk", self._find_room)}
        engine = tasks["engine"] = asyncio.create_task(self._answer())
        try:
            await asyncio.wait(tasks.values(), timeout=LOOK_SECONDS)
            parts = {part: _describe(task) for part, task in tasks.items()}
            if not engine.done() and self._versions.answers > answers:
                parts["engine"] = "ok"  # busy with answers for others, which is what it is for
        finally:
            engine.cancel()
        return Look(parts, self._clock())

    def _begin(self, part: str, look: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        """Begin the look at a part, or wait on for an earlier one that cannot be cancelled."""
        task = self._under_way.get(part)
        if task is None or task.done():
            task = self._under_way[part] = asyncio.create_task(look())
            task.add_done_callback(lambda done: done.cancelled() or done.exception())  # which nobody may ask for
        return task

    async def _write(self) -> None:
        """Commits a line of the audit that the same commit takes away: nobody sees it, and the disk has to take it."""

        def come_and_go(connection: sa.Connection) -> None:
            say(connection, "serve", self._name, None, room=" " * ROOM)
            connection.execute(audit.delete().where(audit.c.what == self._name))

        await self._writer.write(come_and_go)

    async def _find_room(self) -> None:
        await asyncio.to_thread(_check_room, self._folders, self._file)

    async def _answer(self) -> None:
        await self._versions.current.generate([0], Sampling(max_tokens=1))


def _describe(task: asyncio.Task[None]) -> str:
    if not task.done():
        return f"nothing happened within {LOOK_SECONDS:g} seconds"
    error = task.exception()
    return "ok" if error is None else str(error) if isinstance(error, AstuneError) else name_error(error)


def _check_room(folders: set[Path], file: Path | None) -> None:
    """Raises OSError."""
    if file is not None and not file.is_file():
        raise FileNotFoundError(f"{file} is gone: what is written there is lost")
    for folder in folders:
        there = next(each for each in (folder, *folder.parents) if each.exists())  # it is made with the first version
        free = shutil.disk_usage(there).free >> 20
        if free < LEAST_FREE_MIB:
            raise OSError(f"{folder}: {free} MiB are free, fewer than {LEAST_FREE_MIB}")
