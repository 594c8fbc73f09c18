"""One session with an OpenEnv server: a WebSocket on which each message gets one answer.

    session = await Session.open("http://127.0.0.1:8000/ws", {}, seconds=60)
    answer = await session.ask({"type": "reset", "data": {"seed": 3}}, seconds=60)
    await session.close()

Pings are answered also while nothing is asked: a server closes a session that leaves one unanswered for 20 seconds, and
a model may think longer. wsproto knows the protocol; the connection is asyncio's, without a proxy.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    CloseConnection,
    Event,
    Message,
    Ping,
    RejectConnection,
    Request,
    TextMessage,
)
from wsproto.utilities import ProtocolError

from astune.clients.env_replies import parse
from astune.clients.env_requests import certificates
from astune.errors import EnvServiceError

READ_BYTES = 2**16
MOST_CHARACTERS = 32 * 1024 * 1024
"""A longer answer is refused."""
CLOSE_SECONDS = 5.0
"""Time for the server to close its end. Then its place is free."""
NORMAL_CLOSURE = 1000


class SessionEnded(EnvServiceError):
    """No more answers come. `silent`: the server closed the session as if all were well, and had not said a word."""

    def __init__(self, why: str, silent: bool = False) -> None:
        super().__init__(why)
        self.silent = silent


class Session:
    """On one event loop, one question at a time. After an error there are no more answers."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._socket = WSConnection(ConnectionType.CLIENT)
        self._answers: asyncio.Queue[str | SessionEnded] = asyncio.Queue()
        self._parts: list[str] = []
        self._heard = False
        self._ended: SessionEnded | None = None
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def open(cls, url: str, headers: Mapping[str, str], *, seconds: float) -> Session:
        """Raises `SessionEnded` if the server cannot be reached within `seconds`, or refuses."""
        address = urlsplit(url)
        secure = address.scheme == "https"
        connecting = asyncio.open_connection(
            address.hostname, address.port or (443 if secure else 80), ssl=certificates() if secure else None
        )
        try:
            session = cls(*await asyncio.wait_for(connecting, seconds))
        except (OSError, asyncio.TimeoutError) as error:
            raise SessionEnded(f"{url} cannot be reached: {error or 'no answer'}") from error
        try:
            more = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
            session._send(Request(host=address.netloc, target=address.path, extra_headers=more))
            await session._answer(seconds)
        except BaseException:
            session._leave()
            raise
        return session

    async def ask(self, message: Mapping[str, Any], *, seconds: float) -> dict[str, Any]:
        """The answer to `message`. Raises `SessionEnded`, also where none comes within `seconds`."""
        if self._ended is None:
            self._send(TextMessage(json.dumps(message, allow_nan=False)))
        answer = await self._answer(seconds)
        try:
            read = parse(answer.encode())
        except ValueError as error:
            raise self._end(f"the server answered what is no JSON ({error}): {answer:.200}") from error
        if not isinstance(read, dict):
            raise self._end(f"the server answered what is no object: {answer:.200}")
        return read

    async def close(self) -> None:
        """End the session, and wait a moment for the server to have ended it too."""
        if self._ended is None:
            with contextlib.suppress(ProtocolError):
                self._send(TextMessage('{"type": "close"}'))
            await asyncio.wait({self._listening}, timeout=CLOSE_SECONDS)
        self._leave()

    async def _answer(self, seconds: float) -> str:
        try:
            answer = await asyncio.wait_for(self._answers.get(), seconds)
        except asyncio.TimeoutError:
            answer = self._end(f"the server gave no answer within {seconds:g} s")
        if isinstance(answer, SessionEnded):
            self._answers.put_nowait(answer)  # for who asks again
            raise answer
        return answer

    async def _listen(self) -> None:
        """Take in what comes until the session ends."""
        try:
            while self._ended is None:
                data = await self._reader.read(READ_BYTES)
                if not data:
                    self._end("the connection broke off")
                    return
                self._socket.receive_data(data)
                for event in self._socket.events():
                    self._take(event)
        except (OSError, ProtocolError) as error:
            self._end(f"the connection broke: {error or type(error).__name__}")

    def _take(self, event: Event) -> None:
        if isinstance(event, Ping):
            self._send(event.response())
        elif isinstance(event, CloseConnection):
            self._send(event.response())
            why = f"the server closed the session ({event.code}): {event.reason or 'no reason given'}"
            self._end(why, silent=event.code == NORMAL_CLOSURE and not self._heard)
        elif isinstance(event, RejectConnection):
            self._end(f"the server refused the session with status {event.status_code}")
        elif isinstance(event, AcceptConnection):
            self._answers.put_nowait("")
        elif isinstance(event, Message):
            self._heard = True
            self._parts.append(event.data if isinstance(event, TextMessage) else "")
            if sum(map(len, self._parts)) > MOST_CHARACTERS:
                self._end(f"the server's answer is longer than {MOST_CHARACTERS} characters")
            elif event.message_finished:
                self._answers.put_nowait("".join(self._parts))
                self._parts.clear()

    def _send(self, event: Event) -> None:
        self._writer.write(self._socket.send(event))

    def _end(self, why: str, silent: bool = False) -> SessionEnded:
        ended = SessionEnded(why, silent)
        if self._ended is None:
            self._ended = ended
            self._answers.put_nowait(ended)
        return ended

    def _leave(self) -> None:
        self._end("the session is over")
        self._listening.cancel()
        self._writer.close()
