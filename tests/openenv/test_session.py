"""A session of an OpenEnv environment, with a server of whatever manners."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, CloseConnection, Event, Ping, Pong, RejectConnection, Request, TextMessage

from astune.worlds.openenv_session import Session, SessionEnded

ASKED = {"type": "state"}


class Peer:
    """The server's end of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer
        self._socket = WSConnection(ConnectionType.SERVER)
        self._events = iter(())

    def send(self, *events: Event) -> None:
        for event in events:
            self.writer.write(self._socket.send(event))

    async def next(self) -> Event:
        while (event := next(self._events, None)) is None:
            self._socket.receive_data(await self._reader.read(1000) or None)
            self._events = self._socket.events()
        return event

    async def accept(self) -> None:
        assert isinstance(await self.next(), Request)
        self.send(AcceptConnection())


@asynccontextmanager
async def served(behave: Callable[[Peer], Awaitable[None]]):
    """The address of a server that behaves so with each connection; what it raises is raised at the end."""
    served: list[asyncio.Task[None]] = []

    async def handle(reader, writer):
        served.append(asyncio.current_task())
        try:
            await behave(Peer(reader, writer))
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/ws"
        for task in served:
            await task


@pytest.mark.fault(
    "Tools and environments",
    "an OpenEnv server pings while the model thinks for long",
    "it is answered: the session stays open",
)
async def test_a_ping_is_answered_while_nothing_is_asked():
    ponged = asyncio.Event()

    async def behave(peer: Peer) -> None:
        await peer.accept()
        peer.send(Ping(b"still there?"))
        assert await peer.next() == Pong(b"still there?")
        ponged.set()
        assert isinstance(await peer.next(), TextMessage)
        peer.send(TextMessage('{"type": "state"}'))
        assert (await peer.next()).data == '{"type": "close"}'
        peer.send(CloseConnection(1000))

    async with served(behave) as url:
        session = await Session.open(url, {}, seconds=20)
        await asyncio.wait_for(ponged.wait(), 60)
        assert await session.ask(ASKED, seconds=20) == {"type": "state"}
        await session.close()


async def test_an_answer_may_come_in_pieces():
    async def behave(peer: Peer) -> None:
        await peer.accept()
        await peer.next()
        peer.send(TextMessage('{"type":', message_finished=False), Ping(), TextMessage('"é"}'))
        await peer.next()

    async with served(behave) as url:
        session = await Session.open(url, {}, seconds=20)
        assert await session.ask(ASKED, seconds=20) == {"type": "é"}
        await session.close()


ENDS = {
    "without a word": ([CloseConnection(1000)], True, "closed the session (1000): no reason given"),
    "with a reason": ([CloseConnection(1011, "keepalive")], False, "closed the session (1011): keepalive"),
    "in a piece": ([TextMessage("{", message_finished=False), CloseConnection(1000)], False, "closed the session"),
    "broken off": ([], False, "the connection broke off"),
    "no JSON": ([TextMessage("NaN")], False, "no JSON (NaN is no number): NaN"),
    "no object": ([TextMessage("[]")], False, "no object: []"),
}


@pytest.mark.parametrize("end", ENDS)
async def test_an_end_says_what_it_was_and_stays_the_end(end):
    events, silent, said = ENDS[end]

    async def behave(peer: Peer) -> None:
        await peer.accept()
        await peer.next()
        peer.send(*events)

    async with served(behave) as url:
        session = await Session.open(url, {}, seconds=20)
        with pytest.raises(SessionEnded) as told:
            await session.ask(ASKED, seconds=20)
        assert said in str(told.value) and told.value.silent == silent
        with pytest.raises(SessionEnded):
            await session.ask(ASKED, seconds=20)
        await session.close()


async def test_who_never_answers_is_waited_for_so_long_and_no_longer():
    async def behave(peer: Peer) -> None:
        await peer.accept()
        for _ in range(2):
            await peer.next()

    async with served(behave) as url:
        session = await Session.open(url, {}, seconds=20)
        with pytest.raises(SessionEnded, match=r"no answer within 0\.01 s"):
            await session.ask(ASKED, seconds=0.01)
        await session.close()


async def test_who_refuses_or_is_not_there_is_told():
    async def behave(peer: Peer) -> None:
        request = await peer.next()
        assert (b"authorization", b"Bearer x") in request.extra_headers and request.target == "/ws"
        peer.send(RejectConnection(status_code=403))

    async with served(behave) as url:
        with pytest.raises(SessionEnded, match="refused the session with status 403"):
            await Session.open(url, {"Authorization": "Bearer x"}, seconds=20)
    with pytest.raises(SessionEnded, match=r"/ws cannot be reached: .+"):
        await Session.open(url, {}, seconds=20)
