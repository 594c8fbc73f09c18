"""Servers of one name, handed out to tasks or episodes, or shared by all."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from astune.config.tools import SHARED, ToolServerConfig
from astune.errors import ToolServerError
from astune.support.concurrency import has_result
from astune.tools.connection import CallRefused, Connection
from astune.types import Task

logger = logging.getLogger(__name__)


@dataclass
class _Lease:
    """A server that is handed out, or is being made ready, and how many episodes use it."""

    making: asyncio.Task[Connection]
    users: int = 0


class ServerPool:
    """At most `most` servers at a time, the idle ones included. Whoever comes when all are taken waits."""

    def __init__(self, name: str, config: ToolServerConfig, starting: asyncio.Semaphore) -> None:
        self.name = name
        self.config = config
        self._starting = starting
        self._leases: dict[str, _Lease] = {}
        self._idle: list[asyncio.Task[Connection]] = []
        """Those that nobody has, some still under way; the last one goes first."""
        self._room = asyncio.Semaphore(1 if config.isolation == SHARED else config.most)
        self._closing: set[asyncio.Task[None]] = set()
        self._is_closed = False

    async def open(self) -> Connection:
        """Start the first ones, side by side; returns one of them. Raises ToolServerError."""
        self._idle = [self._begin(self._start()) for _ in range(max(1, min(self.config.warm, self.config.most)))]
        return await asyncio.shield(self._idle[-1])

    def key_of(self, episode_id: str, task: Task) -> str:
        """The name of those who have one server together."""
        return {"shared": "", "task": task.task_id, "episode": episode_id}[self.config.isolation]

    async def take(self, key: str, task: Task) -> Connection:
        """The server of `key`, for one more user. Raises ToolServerError."""
        lease = self._leases.get(key)
        if lease is None:
            lease = self._leases[key] = _Lease(self._begin(self._get(task)))
        elif lease.making.done() and not has_result(lease.making):
            lease.making = self._begin(self._start() if self.config.isolation == SHARED else self._get(task))
        lease.users += 1
        try:
            return await asyncio.shield(lease.making)
        except BaseException:
            self.give_back(key)
            raise

    async def renew(self, key: str, broken: Connection, task: Task) -> Connection:
        """The server that all share in place of one that broke; whoever asks first starts it. Raises
        ToolServerError."""
        lease = self._leases[key]
        if lease.making.done() and not (has_result(lease.making) and lease.making.result().works):
            self._close(broken)
            lease.making = self._begin(self._start())
        return await asyncio.shield(lease.making)

    def give_back(self, key: str) -> None:
        """One user less. The last one leaves the server for others if it can be reset or was not used."""
        lease = self._leases.get(key)
        if lease is None:  # the pool was closed before
            return
        lease.users -= 1
        made = has_result(lease.making)
        if lease.users or (made and self.config.isolation == SHARED):
            return
        del self._leases[key]
        if not made:
            lease.making.cancel()
            return
        connection = lease.making.result()
        if connection.works and not connection.stale and (self.config.reset or not connection.used):
            self._idle.append(lease.making)
        else:
            self._close(connection)
        self._room.release()
        self._refill()

    async def close(self) -> None:
        """Close all, side by side."""
        self._is_closed = True
        makings = [*self._idle, *(lease.making for lease in self._leases.values())]
        self._idle, self._leases = [], {}
        for making in makings:
            if has_result(making):
                self._close(making.result())
            else:
                making.cancel()
        await asyncio.gather(*makings, return_exceptions=True)
        while self._closing:
            await asyncio.wait(self._closing)

    async def _get(self, task: Task) -> Connection:
        """A server that is as new, and has its place among the `most`."""
        await self._room.acquire()
        try:
            making = self._idle.pop() if self._idle else self._begin(self._start())
            try:
                connection = await making
            except ToolServerError:
                connection = await self._start()
            self._refill()
            return await self._reset(connection, task)
        except BaseException:
            self._room.release()
            raise

    async def _reset(self, connection: Connection, task: Task) -> Connection:
        """The connection, or a new one in its place, without what episodes before did to it."""
        if self.config.reset is None or not (connection.used or self.config.reset_with):
            return connection
        try:
            await self._call_reset(connection, task)
        except BaseException as error:
            self._close(connection)
            if not isinstance(error, ToolServerError) or not connection.used:
                raise
            logger.info("a new server takes the place of one that cannot be reset: %s", error)
        else:
            return connection
        return await self._reset(await self._start(), task)

    async def _call_reset(self, connection: Connection, task: Task) -> None:
        name, key = self.config.reset, f"astune.tools.servers.{self.name}"
        assert name is not None
        arguments = {}
        for argument, column in self.config.reset_with.items():
            row: Mapping[str, Any] = {"task_id": task.task_id, "query": task.query, **task.metadata}
            if column not in row:
                raise ToolServerError(f"{key}.reset_with.{argument}: task {task.task_id!r} has no column {column!r}")
            arguments[argument] = row[column]
        try:
            wire = await connection.call(name, arguments, self.config.time_limit)
        except (asyncio.TimeoutError, CallRefused) as error:
            raise ToolServerError(f"{key}.reset: {name} failed: {error or 'no answer in time'}") from error
        if wire.get("isError"):
            raise ToolServerError(f"{key}.reset: {name} failed: {wire.get('content')!r:.300}")
        connection.used = False

    async def _start(self) -> Connection:
        connection = Connection(self.name, self.config)
        async with self._starting:
            await connection.start()
        return connection

    def _refill(self) -> None:
        """Start what is missing of those that are kept ready."""
        while (
            not self._is_closed
            and len(self._idle) < self.config.warm
            and len(self._idle) + len(self._leases) < self.config.most
        ):
            self._idle.insert(0, self._begin(self._start()))

    def _begin(self, work: Coroutine[Any, Any, Connection]) -> asyncio.Task[Connection]:
        task = asyncio.ensure_future(work)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # whoever waits for it is told
        return task

    def _close(self, connection: Connection) -> None:
        closing = asyncio.ensure_future(connection.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)


def start_limit() -> asyncio.Semaphore:
    """Servers that start at the same time: each takes a core for its first second."""
    return asyncio.Semaphore(2 * (os.cpu_count() or 1))
