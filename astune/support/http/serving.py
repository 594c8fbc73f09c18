"""ASTune's HTTP servers: uvicorn, with limits on what a client may keep a server waiting for.

A request has to begin `REQUEST_SECONDS` after the connection was made and to be whole as many seconds after it has
begun, plus one for each `BYTES_A_SECOND` of a body that is asked for. Its head (first line and headers) may have
`MOST_HEAD_BYTES`. Else the connection is closed. The time that an answer takes is not limited: a model may think.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from astune.errors import ConfigError
from astune.support.http.browser_requests import Guarded

REQUEST_SECONDS = 30.0
BYTES_A_SECOND = 2**16
MOST_HEAD_BYTES = 2**16
_LOOK_SECONDS = 1.0
_MOST_AROUND_A_BYTE = 8
"""A chunk of one byte has five more."""
BACKLOG = 2048
"""Connections that may wait to be taken while the process is busy."""
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


def bound_socket(host: str, port: int) -> socket.socket:
    """It has the address and takes connections after `listen(BACKLOG)`. Port 0 is any free one. Raises OSError."""
    if not 0 <= port < 2**16:
        raise OSError("a port is a number from 0 to 65535")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named because asyncio turns Nagle's delay (40 ms an answer) off for such sockets only.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except OSError:
        bound.close()
        raise
    return bound


def claim_address(host: str, port: int, advice: str) -> socket.socket:
    """Make a `bound_socket`. Raises ConfigError, with this advice, if the address cannot be used."""
    try:
        return bound_socket(host, port)
    except OSError as error:
        raise ConfigError(f"cannot serve at {host}:{port}: {error.strerror or error}; {advice}") from error


def url_of(host: str, bound: socket.socket) -> str:
    port = bound.getsockname()[1]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def server_config(app: Guarded, *, lifespan: bool = False, **more: Any) -> uvicorn.Config:
    """For `uvicorn.Server`. `more` are further settings of uvicorn."""
    return uvicorn.Config(
        app,
        http=_Bounded,
        loop="asyncio",
        ws="none",
        lifespan="on" if lifespan else "off",
        log_level="warning",
        access_log=False,
        **more,
    )


async def serve_until_signal(
    config: uvicorn.Config,
    listener: socket.socket,
    ready: Callable[[], None],
    *,
    stop: Callable[[], bool] = lambda: False,
    drain: Callable[[], float] = lambda: 0.0,
) -> None:
    """Serve until SIGINT or SIGTERM, or until `stop` says so; what is under way may end. `ready` is called when the
    server answers and hears signals: one that came earlier would end the process in the middle of its start. `drain` is
    called at the first SIGTERM and gives the seconds for which new requests are answered still."""
    listener.listen(BACKLOG)
    await _Server(config, ready, stop, drain).serve(sockets=[listener])


class ServerThread:
    """A server in a thread of its own, with an event loop of its own. `listener` takes connections from now on."""

    def __init__(self, config: uvicorn.Config, listener: socket.socket, name: str) -> None:
        listener.listen(BACKLOG)
        self.listener, self.server = listener, uvicorn.Server(config)
        self._thread = threading.Thread(target=self.server.run, kwargs={"sockets": [listener]}, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self, *, at_once: bool = False) -> None:
        """Stop, and wait for what is under way unless it is to be cut off."""
        self.server.should_exit = True
        self.server.force_exit = at_once
        self._thread.join(5.0 if at_once else None)
        self.listener.close()


class _Server(uvicorn.Server):
    def __init__(
        self,
        config: uvicorn.Config,
        ready: Callable[[], None],
        stop: Callable[[], bool],
        drain: Callable[[], float],
    ) -> None:
        super().__init__(config)
        self._ready, self._stop, self._drain = ready, stop, drain
        self._until: float | None = None
        """The end of draining, once it has begun."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if sig == signal.SIGTERM and self._until is None:
            seconds = self._drain()
            self._until = time.monotonic() + seconds
            if seconds > 0:
                self._captured_signals.append(sig)  # raised again at the end, as the others
                return
        super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        is_over = self._until is not None and time.monotonic() >= self._until
        return is_over or self._stop() or await super().on_tick(counter)


class _Parser(httptools.HttpRequestParser):
    """Reads requests that offer to go on in another protocol as if they did not offer it (RFC 9110, 7.8).

    Java's HTTP client offers HTTP/2 with every request (`Upgrade: h2c`). httptools stops behind the head of such a
    request and takes the body for bytes of the other protocol, so the head is read again without the offer. uvicorn's
    other parser, h11, reads the body, but needs 2.2 times as long for every request.
    """

    def __init__(self, connection: _Bounded) -> None:
        super().__init__(connection)
        self._connection = connection
        # As uvicorn does for its own: else what comes behind `Connection: close` spoils the answer to that request.
        self.set_dangerous_leniencies(lenient_data_after_close=True)

    def feed_data(self, data: bytes) -> None:  # type: ignore[override]
        parser = self
        while True:
            try:
                super(_Parser, parser).feed_data(data)
                return
            except httptools.HttpParserUpgrade as offer:
                if not parser.is_offer():
                    raise
                data = self._connection.head_without_offer() + data[offer.args[0] :]
                parser = self._connection.parser = _Parser(self._connection)  # the old one may have ended with the head

    def is_offer(self) -> bool:
        """Tell whether the head that was read last has such an offer. CONNECT, one to httptools, stays refused."""
        return bool(self.should_upgrade()) and self.get_method() != b"CONNECT"


class _Bounded(HttpToolsProtocol):
    """One connection.

    The seconds are looks at it, of which one that comes late counts as one: a client is not at fault for a server that
    was busy.
    """

    parser: _Parser

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.parser = _Parser(self)
        self._whole = True
        """Whether all of the last request has come, or none has begun."""
        self._body_bytes = self._unread = 0
        self._other_bytes = 0
        """Of what surrounds the body: the head, later the sizes of chunks and the headers behind them."""
        self._seconds = 0.0
        """Waited for the client."""
        self._timer = self.loop.call_later(_LOOK_SECONDS, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        while data and not self.transport.is_closing():
            room = MOST_HEAD_BYTES - self._other_bytes
            if room <= 0:
                if self.cycle is None or self.cycle.response_complete:
                    self.transport.write(_TOO_LARGE)
                self.transport.close()
                return
            part, data = data[:room], data[room:]
            self._other_bytes += len(part)
            super().data_received(part)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._whole = False

    def on_headers_complete(self) -> None:
        if not self.parser.is_offer():
            super().on_headers_complete()

    def head_without_offer(self) -> bytes:
        """Write what was read of the head anew, without the header that makes the offer."""
        version = self.parser.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, version)]
        lines += [b"%s: %s" % header for header in self.headers if header[0] != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._body_bytes += len(body)
        self._other_bytes -= _MOST_AROUND_A_BYTE * len(body)

    def on_message_complete(self) -> None:
        if self.parser.is_offer():
            return
        super().on_message_complete()
        self._whole, self._body_bytes, self._other_bytes, self._seconds = True, 0, 0, 0.0

    def _look(self) -> None:
        if self._waits_for_client():
            self._seconds += _LOOK_SECONDS
        asked_for = self.cycle is not None and not self.cycle.response_complete
        limit = REQUEST_SECONDS + (self._body_bytes / BYTES_A_SECOND if asked_for else 0.0)
        if self._seconds >= limit:
            self.transport.abort()  # close() would wait for an answer to be read
        else:
            self._timer = self.loop.call_later(_LOOK_SECONDS, self._look)

    def _waits_for_client(self) -> bool:
        before, self._unread = self._unread, self.transport.get_write_buffer_size()
        if self._unread:
            return self._unread >= before > 0
        if not self._whole:
            return not self.flow.read_paused
        answers = self.cycle is not None and not self.cycle.response_complete
        return not answers and self.timeout_keep_alive_task is None  # which uvicorn ends by itself
