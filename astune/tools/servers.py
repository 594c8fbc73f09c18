"""All servers of a run, whose tools each episode gets: those of one name are lent to tasks or episodes, or shared by
all."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from astune.config.tools import SHARED, ToolsConfig, ToolServerConfig
from astune.errors import ConfigError, SetupError, ToolServerError, nearest
from astune.support.concurrency import all_or_none
from astune.support.lending import Lender, Loan
from astune.tools.connection import INVALID_PARAMS, CallRefused, Connection, Wire, check_keys
from astune.tools.results import ToolResult, read_result, unknown_tool
from astune.types import Task

KEY = "astune.tools.servers"


@dataclass(frozen=True)
class ServedTool:
    """A tool, by the name that agents know."""

    name: str
    server: str
    theirs: str
    """The name that the server has for it."""
    definition: Mapping[str, Any]
    """In OpenAI's shape."""
    read_only: bool
    """True if the server says that it changes nothing."""
    repeatable: bool
    """True if the server says that a second call does no more than the first."""


class ServerPool(Lender[Connection]):
    """The server of `name`, as often as it is needed."""

    def __init__(self, name: str, config: ToolServerConfig, starting: asyncio.Semaphore) -> None:
        super().__init__(config.isolation, config.warm, config.most)
        self.name, self.config = name, config
        self._key = f"{KEY}.{name}"
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


class ToolServers:
    """The servers of `astune.tools` while this is entered. Entering raises SetupError where one does not start, and
    ConfigError where a key is wrong, or their tools do not go together."""

    def __init__(self, config: ToolsConfig) -> None:
        self.config = config
        self.tools: dict[str, ServedTool] = {}
        self.first: dict[str, Connection] = {}
        """A connection to each server, as it was when the run began."""
        self.pools: dict[str, ServerPool] = {}

    async def __aenter__(self) -> ToolServers:
        for name, each in self.config.servers.items():
            check_keys(name, each)
        starting = asyncio.Semaphore(2 * (os.cpu_count() or 1))  # a start takes a core for its first second
        self.pools = {name: ServerPool(name, each, starting) for name, each in sorted(self.config.servers.items())}
        try:
            first = await all_or_none([pool.start() for pool in self.pools.values()])
            self.first = dict(zip(self.pools, first, strict=True))
            self.tools = self._find_tools()
        except ToolServerError as error:
            await self.__aexit__()
            raise SetupError(f"{error}; no episode was started") from error
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        pools, self.pools = self.pools, {}
        await asyncio.gather(*(pool.close() for pool in pools.values()))

    async def take(self, task: Task) -> EpisodeServers:
        """The servers of an attempt at the task; they are to be given back. Raises ToolServerError.

        All take them in the same order, so that no two wait for what the other has.
        """
        taken = EpisodeServers(self)
        columns = {"task_id": task.task_id, "query": task.query, **task.metadata}
        try:
            for name, pool in self.pools.items():
                taken.loans[name] = await pool.take(task.task_id, **columns)
        except BaseException:
            taken.give_back()
            raise
        return taken

    def _find_tools(self) -> dict[str, ServedTool]:
        found: dict[str, ServedTool] = {}
        for server, connection in self.first.items():
            tools = list(self._tools_of(server, connection))
            if not tools:
                raise ConfigError(f"{KEY}.{server}: no tool is left for agents: allow, deny and reset leave none")
            for tool in tools:
                if other := found.get(tool.name):
                    raise ConfigError(
                        f"{KEY}.{server}: its tool {tool.theirs!r} has the name of one of {other.server}; give it "
                        f"another: {KEY}.{server}.rename={{{tool.theirs}: {server}_{tool.name}}}"
                    )
                found[tool.name] = tool
        return found

    def _tools_of(self, server: str, connection: Connection) -> Iterator[ServedTool]:
        config, listed = self.config.servers[server], {str(wire["name"]): wire for wire in connection.tools}
        named = {"allow": config.allow, "deny": config.deny, "rename": tuple(config.rename)}
        named["reset"] = () if config.reset is None else (config.reset,)
        for key, names in named.items():
            for name in names:
                if name not in listed:
                    has = ", ".join(listed) or "none"
                    raise ConfigError(f"{KEY}.{server}.{key}: no tool {name!r}.{nearest(name, listed)} It has: {has}")
        for name, wire in listed.items():
            if (not config.allow or name in config.allow) and name not in config.deny and name != config.reset:
                yield _make_tool(server, wire, config.rename.get(name) or re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:64])


def _make_tool(server: str, wire: Wire, name: str) -> ServedTool:
    hints = wire.get("annotations") or {}
    schema = {"type": "object", "properties": {}, **(wire.get("inputSchema") or {})}
    function = {"name": name, "description": wire.get("description") or "", "parameters": schema}
    read_only, idempotent = bool(hints.get("readOnlyHint")), bool(hints.get("idempotentHint"))
    definition = {"type": "function", "function": function}
    return ServedTool(name, server, wire["name"], definition, read_only, read_only or idempotent)


class EpisodeServers:
    """The servers that one episode has."""

    def __init__(self, servers: ToolServers) -> None:
        self.tools = servers.tools
        self.loans: dict[str, Loan[Connection]] = {}
        self._pools = servers.pools

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Call the tool. What goes wrong is a result: its text tells the agent, its cause everybody else."""
        tool = self.tools.get(name)
        if tool is None:
            return unknown_tool(name, self.tools)
        config = self._pools[tool.server].config
        result = await self._try(tool, arguments)
        for _ in range(config.retries if tool.repeatable else 0):
            if result.cause != "time_limit" and not (result.cause == "broke" and config.isolation == SHARED):
                break
            result = await self._try(tool, arguments)
        return result

    async def _try(self, tool: ServedTool, arguments: Mapping[str, Any]) -> ToolResult:
        pool = self._pools[tool.server]
        config = pool.config
        try:
            connection = await pool.get(self.loans[tool.server])
            connection.used = True
            wire = await connection.call(tool.theirs, arguments, config.time_limit)
        except asyncio.TimeoutError:
            return ToolResult(f"Error: {tool.name} gave no answer within {config.time_limit:g} s", "time_limit")
        except CallRefused as error:
            return ToolResult(f"Error: {error}", "malformed" if error.code == INVALID_PARAMS else "said_no")
        except ToolServerError as error:
            return ToolResult(f"Error: the tool {tool.name} is broken", "broke", detail=str(error))
        return read_result(wire, config.longest_result, config.on_longer)

    def give_back(self) -> None:
        """Nothing is called after this."""
        for name, loan in self.loans.items():
            self._pools[name].give_back(loan)
        self.loans = {}
