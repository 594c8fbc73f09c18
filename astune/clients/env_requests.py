"""One request to an environment service: either a reply that says what was asked for comes back, or a `Fault`."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from functools import cache
from typing import Any

import anyio
import httpx

from astune.clients.env_replies import parse

MOST_BYTES = 32 * 1024 * 1024
"""A longer reply is refused."""
MOST_IDLE = 256
KEEP_ALIVE_SECONDS = 2.0
"""Less than servers wait before they hang up (uvicorn: 5 s), so that no request meets a connection that is closing."""


class Fault(Exception):
    """The failure of one attempt at a call."""

    def __init__(
        self,
        text: str,
        *,
        passing: bool,
        status: int | None = None,
        code: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(text)
        self.passing = passing
        """True if another attempt may succeed: the service has not understood the request and refused it."""
        self.status = status
        """The HTTP status; None where there was no whole reply."""
        self.code = code
        """The code of the service's error, as `unknown_instance`; None if it gave none."""
        self.retry_after = retry_after
        """Seconds after which the service wants to be asked again; None where it does not say."""


class Connections:
    """The kept connections of one event loop, as they cannot leave it. All clients on the loop share them.

    Each stands in an `httpx.AsyncClient` of its own, which has one request at a time: what a request does that fails
    or is cancelled, even twice, ends with its connection. (httpx's pool does not get over that, and it looks through
    all connections for every request, which costs more than the request where there are 256.)
    """

    def __init__(self) -> None:
        self.idle: deque[tuple[float, httpx.AsyncClient]] = deque()
        """With the time since when, longest first."""
        self._time = asyncio.get_running_loop().time

    @asynccontextmanager
    async def one(self) -> AsyncGenerator[httpx.AsyncClient, None]:
        """A connection, kept unless the block raises."""
        while self.idle and (self.idle[0][0] < self._time() - KEEP_ALIVE_SECONDS or len(self.idle) > MOST_IDLE):
            await self.idle.popleft()[1].aclose()
        http = self.idle.pop()[1] if self.idle else _connection()
        try:
            yield http
        except BaseException:
            await http.aclose()
            raise
        self.idle.append((self._time(), http))

    async def close(self) -> None:
        while self.idle:
            await self.idle.popleft()[1].aclose()


_of_loops: dict[asyncio.AbstractEventLoop, tuple[Connections, AsyncGenerator[None, None]]] = {}


async def connections() -> Connections:
    """The connections of the running loop. They are closed when it ends: `asyncio.run`, like all code that ends a loop
    properly, finishes the asynchronous generators that stand at a `yield`."""
    loop = asyncio.get_running_loop()
    if loop not in _of_loops:
        for ended in [other for other in [*_of_loops] if other.is_closed()]:
            _of_loops.pop(ended, None)
        kept = Connections()
        end = _close_at_the_end(loop, kept)
        _of_loops[loop] = kept, end
        await end.__anext__()
    return _of_loops[loop][0]


async def _close_at_the_end(loop: asyncio.AbstractEventLoop, kept: Connections) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        _of_loops.pop(loop, None)
        await kept.close()


THIS_MACHINE: Mapping[str, None] = dict.fromkeys(("all://127.0.0.1", "all://localhost", "all://[::1]"))
"""No proxy leads there, whatever the environment says of proxies."""


def _connection() -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=1, keepalive_expiry=KEEP_ALIVE_SECONDS)
    headers = {"Accept-Encoding": "identity"}
    return httpx.AsyncClient(timeout=None, limits=limits, headers=headers, verify=certificates(), mounts=THIS_MACHINE)


@cache
def certificates() -> ssl.SSLContext:
    """The certificates that are trusted. Reading them takes 0.1 s, so it is done once."""
    return httpx.create_ssl_context()


@dataclass(frozen=True)
class Reply:
    status: int
    headers: httpx.Headers
    body: bytes

    def content(self) -> dict[str, Any]:
        """The JSON object that says what was asked for. Raises `Fault` for every other reply."""
        if self.headers.get("Content-Encoding", "identity") != "identity":
            raise Fault("the reply is compressed, which was not asked for", passing=True)
        try:
            content = parse(self.body)
        except ValueError as error:
            if self.status != 200:
                raise self._refusal(None) from None
            said = f"answered {self._text()}" if self.body else "answered nothing"
            raise Fault(f"{said}, which is not JSON ({error})", passing=True) from error
        if self.status != 200:
            raise self._refusal(content)
        if not isinstance(content, dict) or content.get("success", True) is not True:
            raise self._refusal(content)
        return content

    def _refusal(self, content: object) -> Fault:
        """Turn an error reply into a `Fault`."""
        if 300 <= self.status < 400:
            there = self.headers.get("Location", "")
            return Fault(f"the service redirects to {there:.200}; name the address that it is at", passing=False)
        error = content.get("error") if isinstance(content, dict) else None
        code = error.get("code") if isinstance(error, dict) else None
        if isinstance(error, dict) and isinstance(code, str):
            text = f"the service says {code}: {error.get('message')!s:.1000}"
        else:
            code, text = None, f"answered with status {self.status}: {self._text()}"
            if self.status in (404, 405):
                text += "; is this the address of an environment service?"
        return Fault(
            text,
            passing=code is None and self.status >= 500,
            status=self.status,
            code=code,
            retry_after=seconds_from_now(self.headers.get("Retry-After", "")),
        )

    def _text(self) -> str:
        return f"{self.body[:1000].decode(errors='replace')!r:.300}"


async def exchange(method: str, url: str, content: bytes, headers: Mapping[str, str], timeout: float) -> Reply:
    """Sends one request and reads all of its reply within `timeout` seconds. Raises `Fault`."""
    kept = await connections()
    try:
        async with kept.one() as http:
            with anyio.fail_after(timeout):
                async with http.stream(method, url, content=content, headers=headers) as response:
                    return Reply(response.status_code, response.headers, await _body(response))
    except TimeoutError as error:
        raise Fault(f"no answer within {timeout:g} s", passing=True) from error
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise Fault(f"this is no address ({error})", passing=False) from error
    except (httpx.ConnectError, httpx.ProxyError) as error:
        raise Fault(f"the service cannot be reached ({error}); is it running?", passing=True) from error
    except httpx.HTTPError as error:
        said = f"{type(error).__name__}: {error}".rstrip(": ")
        raise Fault(f"the connection broke before the reply was complete ({said})", passing=True) from error


async def _body(response: httpx.Response) -> bytes:
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > MOST_BYTES:
            raise Fault(f"the reply is longer than {MOST_BYTES // 1024**2} MiB", passing=False)
    return bytes(body)


def seconds_from_now(retry_after: str) -> float | None:
    """Read a Retry-After header, which gives seconds or a date. None if it gives neither."""
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", retry_after):
        return float(retry_after)
    try:
        when = parsedate_to_datetime(retry_after)
    except ValueError:
        return None
    return max(0.0, (when.replace(tzinfo=when.tzinfo or timezone.utc) - datetime.now(timezone.utc)).total_seconds())
