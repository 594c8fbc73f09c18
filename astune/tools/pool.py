"""Servers of one name, lent to tasks or episodes, or shared by all."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from astune.config.tools import ToolServerConfig
from astune.errors import ToolServerError
from astune.support.lending import Lender
from astune.tools.connection import CallRefused, Connection


class ServerPool(Lender[Connection]):
    """The server of `name`, as often as it is needed."""

    def __init__(self, name: str, config: ToolServerConfig, starting: asyncio.Semaphore) -> None:
        super().__init__(config.isolation, config.warm, config.most)
        self.name, self.config = name, config
        self._key = f"astune.tools.servers.{name}"
        self._starting = starting

    async def start(self) -> Connection:
        """Start the first ones, side by side; returns one of them. Raises ToolServerError."""
        self.open(least=1)
        return await asyncio.shield(self._idle[0])

    async def make(self) -> Connection:
        connection = Connection(self.name, self.config)
        async with self._starting:
            await connection.start()
        return connection

    async def end(self, thing: Connection) -> None:
        await thing.close()

    def works(self, thing: Connection) -> bool:
        return thing.works

    async def prepare(self, thing: Connection, columns: Mapping[str, object]) -> None:
        if missing := [each for each in self.config.reset_with.items() if each[1] not in columns]:
            argument, column = missing[0]
            raise ToolServerError(
                f"{self._key}.reset_with.{argument}: task {columns['task_id']!r} has no column {column!r}"
            )
        if self.config.reset_with:
            await self._reset(thing, {name: columns[column] for name, column in self.config.reset_with.items()})

    def can_be_renewed(self, thing: Connection) -> bool:
        return thing.works and (self.config.reset is not None or not thing.used)

    async def renew(self, thing: Connection) -> None:
        if thing.stale:  # once its episode was over
            raise ToolServerError(f"{self._key}: a call was given up")
        if thing.used and not self.config.reset_with:
            await self._reset(thing, {})

    async def _reset(self, connection: Connection, arguments: Mapping[str, Any]) -> None:
        """Undo what episodes before did to it. Raises ToolServerError."""
        name = str(self.config.reset)
        try:
            wire = await connection.call(name, arguments, self.config.time_limit)
        except (asyncio.TimeoutError, CallRefused) as error:
            raise ToolServerError(f"{self._key}.reset: {name} failed: {error or 'no answer in time'}") from error
        if wire.get("isError"):
            raise ToolServerError(f"{self._key}.reset: {name} failed: {wire.get('content')!r:.300}")
        connection.used = False
