"""Starts each server by itself and tries what can be tried without harm: for the doctor and `astune tools check`."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal

from astune.config.tools import SHARED, ToolsConfig
from astune.errors import ConfigError, SetupError, ToolServerError
from astune.tools.servers import KEY, ServedTool, ToolServers
from astune.types import Task

LONG_START = 0.5
"""Seconds of a start that should not be paid for every episode."""
NO_TASK = Task("check", "")


@dataclass(frozen=True)
class ToolFinding:
    """One thing that was found out about a server; a fault or a warning says what to do."""

    level: Literal["ok", "warn", "fault"]
    server: str
    text: str
    fix: str = ""


async def check_servers(config: ToolsConfig) -> AsyncIterator[ToolFinding]:
    """Give the findings of each server, then those of all together."""
    broken = False
    for name, server in config.servers.items():
        alone = server.model_copy(update={"warm": 0, "most": 1})
        servers = ToolServers(config.model_copy(update={"servers": {name: alone}}))
        try:
            async with servers:
                async for finding in _check_one(name, servers):
                    yield finding
        except ConfigError as error:
            broken = True
            yield ToolFinding("fault", name, str(error).removeprefix(f"{KEY}.{name}: "), "correct the key")
        except SetupError as error:
            broken = True
            said = str(error).removeprefix(f"{KEY}.{name}: ").removesuffix("; no episode was started")
            yield ToolFinding("fault", name, said, "start it by hand and look")
    if not broken and len(config.servers) > 1:
        try:
            async with ToolServers(config):
                pass
        except (SetupError, ConfigError) as error:
            yield ToolFinding("fault", "together", str(error), "correct the key")


async def _check_one(name: str, servers: ToolServers) -> AsyncIterator[ToolFinding]:
    config, tools = servers.config.servers[name], list(servers.tools.values())
    seconds = servers.first[name].start_seconds
    yield ToolFinding("ok", name, f"starts in {seconds:.2g} s, {len(tools)} tools: {', '.join(servers.tools)}")
    changing = [tool.name for tool in tools if not tool.read_only]
    if config.isolation == SHARED and changing:
        yield ToolFinding(
            "warn",
            name,
            f"all episodes share it, and it does not say of {', '.join(changing)} that they are read-only: what one "
            "episode changes, others see",
            f"{KEY}.{name}.isolation: episode, or task; or deny them",
        )
    if config.isolation != SHARED and config.url is None and config.reset is None and seconds > LONG_START:
        yield ToolFinding(
            "warn",
            name,
            f"each {config.isolation} starts it anew, which takes {seconds:.2g} s of a core",
            f"{KEY}.{name}.reset: a tool that undoes what was done; or keep some warm",
        )
    try:
        if config.reset is not None and not config.reset_with:
            yield await _try_reset(name, servers)
        if tool := next((each for each in tools if each.read_only and not _has_required(each)), None):
            yield await _try_call(name, servers, tool)
    except ToolServerError as error:
        yield ToolFinding("fault", name, str(error), "see what the server says")


async def _try_reset(name: str, servers: ToolServers) -> ToolFinding:
    pool = servers.pools[name]
    loan = await pool.take("check")
    connection = await pool.get(loan)
    connection.used = True
    pool.give_back(loan)
    began = time.monotonic()
    loan = await pool.take("check")
    seconds = time.monotonic() - began
    again = await pool.get(loan)
    pool.give_back(loan)
    reset = pool.config.reset
    if again is not connection:
        return ToolFinding("fault", name, f"its reset tool {reset} fails, so that each use costs a start", "correct it")
    return ToolFinding("ok", name, f"{reset} resets it in {1000 * seconds:.2g} ms")


async def _try_call(name: str, servers: ToolServers, tool: ServedTool) -> ToolFinding:
    taken = await servers.take(NO_TASK)
    began = time.monotonic()
    result = await taken.call(tool.name, {})
    seconds = time.monotonic() - began
    taken.give_back()
    if result.cause is not None:
        said = f"{tool.name}, which is read-only and needs no arguments, fails: {result.detail or result.text:.300}"
        return ToolFinding("fault" if result.cause == "broke" else "warn", name, said, "call it: astune tools call")
    return ToolFinding("ok", name, f"{tool.name} answers in {1000 * seconds:.2g} ms")


def _has_required(tool: ServedTool) -> bool:
    return bool(tool.definition["function"]["parameters"].get("required"))
