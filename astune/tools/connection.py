"""One MCP server: started by a command, or reached at an address. The package `mcp`, 1.x or 2.x, is used here alone."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import shutil
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from astune.config.tools import ToolServerConfig
from astune.errors import ConfigError, MissingDependency, ToolServerError
from astune.support.concurrency import first_error
from astune.support.user_values import text_of

logger = logging.getLogger(__name__)

LAST_CHARACTERS = 2000
"""Kept of what a server writes to its standard error."""
STOP_SECONDS = 10.0
"""A server that is not gone by then is left to itself; the package kills it after 2 s."""
MOST_UNANSWERED = 3
"""Calls in a row without an answer after which a server counts as broken."""
Wire = Mapping[str, Any]
"""A message of the protocol as JSON has it: 1.x and 2.x name its fields differently in Python."""


class Connection:
    """A session at one server, in a task of its own, as anyio's cancel scopes must be left where they were entered.

    `tools` are the server's, as it lists them. `used` is True once an agent has called one, `stale` once a call was
    given up: nobody knows what it did, or still does.
    """

    def __init__(self, name: str, config: ToolServerConfig) -> None:
        self.name = name
        self.tools: Sequence[Wire] = ()
        self.used = self.stale = False
        self.start_seconds = 0.0
        self._config = config
        self._unanswered = 0
        self._session: Any = None
        self._failed: BaseException | None = None
        self._ready, self._closing = asyncio.Event(), asyncio.Event()
        self._said = _LastWords()
        self._task: asyncio.Task[None] | None = None

    @property
    def works(self) -> bool:
        return self._session is not None

    async def start(self) -> None:
        """Start it, and ask for its tools. Raises ToolServerError."""
        began = time.monotonic()
        self._task = asyncio.create_task(self._hold(), name=f"tool server {self.name}")
        try:
            await asyncio.wait_for(self._ready.wait(), self._config.start_limit)
        except asyncio.TimeoutError:
            await self.close()
            raise self._error(f"has not started within {self._config.start_limit:g} s") from None
        except asyncio.CancelledError:
            await self.close()
            raise
        self.start_seconds = time.monotonic() - began
        if not self.works:
            await self.close()
            raise self._error(f"does not start: {_first(self._failed)}")

    async def call(self, name: str, arguments: Mapping[str, Any], seconds: float) -> Wire:
        """The result of one tool.

        Raises:
            CallRefused: the server does not take the call.
            asyncio.TimeoutError: there is no answer after so many seconds.
            ToolServerError: the server has died, or could not be reached.
        """
        session, holding = self._session, self._task
        if session is None or holding is None:
            raise self._error(f"has ended: {_first(self._failed)}")
        types = mcp_package().types  # not session.call_tool, which reads the schema of results anew for each
        asked = types.CallToolRequest(params=types.CallToolRequestParams(name=name, arguments=dict(arguments)))
        work = asyncio.ensure_future(session.send_request(asked, types.CallToolResult))
        try:
            await asyncio.wait({work, holding}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not work.done():
                self.stale = True
                work.cancel()
        if work.done() and not work.cancelled():
            self._unanswered = 0
            return self._read(work)
        if holding.done():
            raise self._error(f"died during a call: {_first(self._failed)}")
        self._unanswered += 1
        if self._unanswered == MOST_UNANSWERED:
            self._session = None
            self._failed = TimeoutError(f"{MOST_UNANSWERED} calls in a row got no answer")
        raise asyncio.TimeoutError

    async def close(self) -> None:
        """End the session, and the server if this started it."""
        self._session = None
        self._closing.set()
        if self._task is not None:
            if not self._ready.is_set():
                self._task.cancel()
            await asyncio.wait({self._task}, timeout=STOP_SECONDS)
        self._said.close()

    def _read(self, work: asyncio.Task[Any]) -> Wire:
        try:
            return to_wire(work.result())
        except error_class() as error:
            if error.error.code == CONNECTION_CLOSED:
                self._session = None
                raise self._error(f"died during a call: {error}") from error
            raise CallRefused(error.error.code, error.error.message) from error
        except asyncio.CancelledError:
            raise self._error("died during a call") from None
        except Exception as error:  # a stream of anyio that is closed, an address that nobody answers at
            self._session = None
            raise self._error(f"cannot be reached: {_first(error)}") from error

    async def _hold(self) -> None:
        mcp = mcp_package()
        try:
            async with AsyncExitStack() as stack:
                read, write = (await stack.enter_async_context(self._transport()))[:2]
                self._said.close_writing()
                session = await stack.enter_async_context(mcp.ClientSession(read, write, message_handler=self._hear))
                await session.initialize()
                self.tools = await _list_tools(session)
                self._session = session
                self._ready.set()
                await self._closing.wait()
        except BaseException as error:
            self._failed = error
        finally:
            self._session = None
            self._ready.set()

    async def _hear(self, message: object) -> None:
        """Take in what the server says without being asked; an error if that is not of the protocol."""
        if isinstance(message, ValidationError):
            _warn_of_text(self.name, repr(message.errors()[0]["input"])[:200])

    def _transport(self) -> Any:
        config = self._config
        if config.url is None:
            command, arguments = config.command[0], list(config.command[1:])
            command = sys.executable if command == "python" else command
            if shutil.which("setpriv"):  # of Linux: a server that is in a call ends with this process, too
                command, arguments = "setpriv", ["--pdeathsig", "KILL", "--", command, *arguments]
            parameters = mcp_package().StdioServerParameters(
                command=command,
                args=arguments,
                env=config.env | {name: os.environ[name] for name in config.pass_env},
                cwd=config.folder,
            )
            return mcp_package().stdio_client(parameters, errlog=self._said.open())
        headers = {}
        if config.token_env is not None:
            headers["Authorization"] = f"Bearer {os.environ[config.token_env]}"
        if config.transport == "sse":
            return import_module("mcp.client.sse").sse_client(config.url, headers=headers)
        return _open_http(config.url, headers)

    def _error(self, what: str) -> ToolServerError:
        said = self._said.text()
        return ToolServerError(
            f"astune.tools.servers.{self.name}: the server {what}{f'; it said: {said}' if said else ''}"
        )


@asynccontextmanager
async def _open_http(url: str, headers: Mapping[str, str]) -> AsyncIterator[Any]:
    """The streams of a session over HTTP. The package does not close a client that it is given."""
    http, connect = _http_package(), import_module("mcp.client.streamable_http").streamable_http_client
    limit = http.Timeout(30.0, read=300.0)
    async with (
        http.AsyncClient(headers=headers, timeout=limit, verify=_certificates()) as client,
        connect(url, http_client=client) as streams,
    ):
        yield streams


@functools.cache
def _certificates() -> Any:
    """The certificates that servers are checked by; each session would take 20 ms to read them."""
    return _http_package().create_ssl_context()


class CallRefused(Exception):
    """A call that the server answered with an error of the protocol, and its code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


CONNECTION_CLOSED = -32000
INVALID_PARAMS = -32602


def to_wire(message: Any) -> Wire:
    """A message of the package as JSON has it."""
    wire: Wire = message.model_dump(by_alias=True, mode="json", exclude_none=True)
    return wire


def check_keys(server: str, config: ToolServerConfig) -> None:
    """Raises ConfigError if there is no such program, folder or variable as the server is to have."""
    key = f"astune.tools.servers.{server}"
    tokens = () if config.token_env is None else (config.token_env,)
    for name, variables in {"pass_env": config.pass_env, "token_env": tokens}.items():
        for variable in variables:
            if variable not in os.environ:
                raise ConfigError(f"{key}.{name}: the environment variable {variable} is not set")
    if config.url is not None:
        return
    folder, program = Path(config.folder or "."), config.command[0]
    if not folder.is_dir():
        raise ConfigError(f"{key}.folder: there is no such folder: {folder}")
    found = (folder / program).is_file() if "/" in program else shutil.which(program, path=config.env.get("PATH"))
    if not found and program != "python":
        raise ConfigError(f"{key}.command: there is no program {program!r}")


@functools.cache
def mcp_package() -> Any:
    """The package `mcp`. Raises MissingDependency."""
    try:
        package = import_module("mcp")
    except ModuleNotFoundError as error:
        raise MissingDependency('astune.tools.servers needs the package mcp: pip install "astune[tools]"') from error
    logging.getLogger("mcp.client.stdio").addFilter(lambda record: False)  # `_warn_of_text` says it in a line
    return package


@functools.cache
def _warn_of_text(server: str, text: str) -> None:
    """Say it once."""
    logger.warning(
        "astune.tools.servers.%s: the server prints to its standard output, which is for its answers; let it print to "
        "its standard error: %s",
        server,
        text,
    )


@functools.cache
def error_class() -> type[Any]:
    """The package's error of an answer that is one."""
    found: type[Any] = vars(mcp_package())["McpError" if _is_first_line() else "MCPError"]
    return found


@functools.cache
def _http_package() -> Any:
    return import_module("httpx" if _is_first_line() else "httpx2")


def _is_first_line() -> bool:
    """True of 1.x, which names some things otherwise."""
    return metadata.version("mcp").startswith("1.")


async def _list_tools(session: Any) -> list[Wire]:
    page = await session.list_tools()
    found = [to_wire(tool) for tool in page.tools]
    while cursor := to_wire(page).get("nextCursor"):
        page = await session.list_tools(params=mcp_package().types.PaginatedRequestParams(cursor=cursor))
        found += [to_wire(tool) for tool in page.tools]
    return found


def _first(error: BaseException | None) -> str:
    """The error in a line; of several that anyio put into a group, the first."""
    if error is None:
        return "it was closed"
    first = first_error(error)
    return f"{type(first).__name__}: {text_of(first)}"


class _LastWords:
    """The end of what a server writes to its standard error, read while the loop turns."""

    def __init__(self) -> None:
        self._kept = ""
        self._reading: int | None = None
        self._writing: Any = None

    def open(self) -> Any:
        """The file for the server to write to."""
        self._reading, writing = os.pipe()
        os.set_blocking(self._reading, False)
        self._writing = os.fdopen(writing, "w")
        asyncio.get_running_loop().add_reader(self._reading, self._read)
        return self._writing

    def close_writing(self) -> None:
        """Leave the writing to the server, which has the file now."""
        if self._writing is not None:
            self._writing.close()

    def text(self) -> str:
        """The last lines, in one."""
        if self._reading is not None:
            self._read()
        return " | ".join(line.strip() for line in self._kept.splitlines()[-5:] if line.strip())

    def close(self) -> None:
        if self._reading is not None:
            self._read()
        if self._reading is not None:
            self._end()
        self.close_writing()

    def _read(self) -> None:
        assert self._reading is not None
        with suppress(BlockingIOError):
            data = os.read(self._reading, 65536)
            self._kept = (self._kept + data.decode(errors="replace"))[-LAST_CHARACTERS:]
            if not data:
                self._end()

    def _end(self) -> None:
        assert self._reading is not None
        asyncio.get_running_loop().remove_reader(self._reading)
        os.close(self._reading)
        self._reading = None
