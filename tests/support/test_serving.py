"""What all servers ask of their clients' connections, over raw sockets."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
import uvicorn
from starlette.responses import PlainTextResponse

from astune.support.http import serving
from astune.support.http.browser_requests import Guarded
from astune.support.http.serving import MOST_HEAD_BYTES, bound_socket, serve_until_signal, server_config
from astune.support.signals import on_ctrl_c, signals_as_ctrl_c

pytestmark = pytest.mark.filterwarnings("error")
AREA = "The OpenAI-compatible endpoint"
BODY = b"x" * 3
HEAD = b"POST /%s HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n"
GOOD = HEAD % b"all" + b"\r\n" + BODY


class App:
    """Answers with the length of the body: to `/none` without reading it, to `/slow` when `gate` is set, to `/long`
    with much more than sockets hold."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.disconnected = threading.Event()

    async def __call__(self, scope, receive, send) -> None:
        path, length, more = scope["path"], 0, scope["path"] != "/none"
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.disconnected.set()
                return
            length += len(message["body"])
            more = message["more_body"]
        if path == "/slow":
            await asyncio.to_thread(self.gate.wait, 60)
        answer = b"a" * 2**25 if path == "/long" else b"%d" % length
        headers = [(b"content-length", b"%d" % len(answer))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})


class Served:
    def __init__(self, keep_alive: int) -> None:
        self.app = App()
        self.socket = bound_socket("127.0.0.1", 0)
        self.socket.listen(serving.BACKLOG)
        open_to_all = Guarded(self.app, PlainTextResponse, any_name=True, any_type=True)
        self.server = uvicorn.Server(server_config(open_to_all, log_config=None, timeout_keep_alive=keep_alive))
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.socket]})

    def open(self) -> socket.socket:
        return socket.create_connection(self.socket.getsockname(), timeout=60)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """A server that waits for a quarter of a second for its clients, and keeps connections."""
    monkeypatch.setattr(serving, "REQUEST_SECONDS", 0.25)
    monkeypatch.setattr(serving, "_LOOK_SECONDS", 0.05)
    server = Served(keep_alive=3600)
    server.thread.start()
    yield server
    server.app.gate.set()
    server.server.should_exit = server.server.force_exit = True
    server.thread.join()
    server.socket.close()


@pytest.fixture
def patient(served: Served, monkeypatch: pytest.MonkeyPatch) -> Served:
    monkeypatch.setattr(serving, "REQUEST_SECONDS", 60.0)
    return served


def until_closed(connection: socket.socket) -> bytes:
    """What came before the server closed the connection; a TimeoutError if it does not."""
    told = b""
    try:
        while part := connection.recv(2**16):
            told += part
    except ConnectionError:
        pass
    return told


def answer(connection: socket.socket) -> bytes:
    told = b""
    while not told.endswith(b"\r\n\r\n"):
        byte = connection.recv(1)
        assert byte, told
        told += byte
    length = int(told.partition(b"content-length: ")[2].split(b"\r\n")[0])
    return b"".join(connection.recv(1) for _ in range(length))


@pytest.mark.fault(
    AREA, "a client begins a request and does not finish it (all servers)", "the connection is closed after 30 seconds"
)
@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"\r\n",
        b"POST /al",
        HEAD % b"all",
        HEAD % b"all" + b"\r\n" + BODY[:-1],
        b"POST /all HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n",
        b"POST /all HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n",
    ],
)
def test_a_request_that_does_not_become_whole_is_closed(served: Served, sent: bytes) -> None:
    with closing(served.open()) as first, closing(served.open()) as second:
        second.sendall(GOOD)
        assert answer(second) == b"3"
        first.sendall(sent)
        second.sendall(sent)
        for connection in (first, second) if sent else (first,):  # one that rests is the client's to close
            assert until_closed(connection) in (b"", b"HTTP/1.1 100 Continue\r\n\r\n")


def test_a_connection_that_rests_between_requests_is_kept(served: Served) -> None:
    with closing(served.open()) as connection:
        connection.sendall(GOOD)
        assert answer(connection) == b"3"
        with closing(served.open()) as other:
            assert until_closed(other) == b""
        connection.sendall(GOOD)
        assert answer(connection) == b"3"


def test_an_application_hears_that_a_body_stopped_coming(served: Served) -> None:
    with closing(served.open()) as connection:
        connection.sendall(GOOD[:-1])
        assert until_closed(connection) == b""
    assert served.app.disconnected.wait(60)


@pytest.mark.fault(AREA, "a client sends its request byte by byte", "the connection is closed after 30 seconds")
@pytest.mark.parametrize("sent", [b"GET /all HTTP/1.1\r\nX: " + b"a" * 10_000, HEAD % b"all"])
def test_drops_do_not_keep_a_connection(served: Served, sent: bytes) -> None:
    with closing(served.open()) as connection:
        connection.settimeout(0.02)
        for byte in sent.replace(b"h: 3", b"h: 9999") + b"\r\n" + b"x" * 9000:
            try:
                connection.sendall(bytes([byte]))
                assert connection.recv(1) == b""
            except TimeoutError:
                continue
            except ConnectionError:
                pass
            return
    raise AssertionError("it was not closed")


def test_a_client_that_does_not_read_its_answer_is_let_go(served: Served) -> None:
    with closing(served.open()) as connection:
        connection.sendall(GOOD.replace(b"/all", b"/long"))
        with closing(served.open()) as other:
            assert until_closed(other) == b""  # as long as the server waits
            for _ in range(3):
                with closing(served.open()) as another:
                    until_closed(another)
        assert 0 < len(until_closed(connection)) < 2**25


def test_a_body_after_an_early_answer_ends_as_well(served: Served) -> None:
    with closing(served.open()) as connection:
        connection.sendall((HEAD % b"none").replace(b": 3", b": 99999999") + b"\r\nx")
        assert answer(connection) == b"0"
        assert until_closed(connection) == b""


def test_an_answer_may_take_its_time(served: Served) -> None:
    with closing(served.open()) as connection:
        connection.sendall(GOOD.replace(b"/all", b"/slow"))
        for _ in range(2):
            with closing(served.open()) as other:
                assert until_closed(other) == b""  # twice as long as the server waits for clients
        served.app.gate.set()
        assert answer(connection) == b"3"


def test_a_long_body_may_come_slowly(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a megabyte has eight seconds more than an empty body."""
    size = 2**19
    with closing(served.open()) as connection:
        connection.sendall((HEAD % b"all").replace(b": 3", b": %d" % size) + b"\r\n" + b"x" * (size - 1))
        for _ in range(2):
            with closing(served.open()) as other:
                assert until_closed(other) == b""
        connection.sendall(b"x")
        assert answer(connection) == b"%d" % size


@pytest.mark.fault(AREA, "the headers of a request have no end (all servers)", "431 at 64 KiB")
@pytest.mark.parametrize("line", [b"X-Long: ", b"X: 1\r\n", b""])
def test_a_head_may_have_64_kib(patient: Served, line: bytes) -> None:
    start = HEAD % b"all" if line else b"POST /"
    room = MOST_HEAD_BYTES - len(start)
    more = (line * (room // len(line)) if line.endswith(b"\n") else line) if line else b""
    more += b"a" * (room - len(more))
    with closing(patient.open()) as connection:
        connection.sendall(start + more)
        connection.settimeout(0.05)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        connection.settimeout(60)
        connection.sendall(b"a")
        assert until_closed(connection).startswith(b"HTTP/1.1 431 ")


def test_what_stands_around_a_body_is_bounded(patient: Served) -> None:
    """Chunks of a byte are fine; sizes, extensions and trailers without a body are not."""
    chunked = b"POST /all HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    with closing(patient.open()) as connection:
        connection.sendall(chunked + b"1\r\nx\r\n" * 50_000 + b"0\r\n\r\n")
        assert answer(connection) == b"50000"
    for more in (b"1;" + b"a" * 2**20, b"0\r\nX: " + b"a" * 2**20, b"0\r\n" + b"X: a\r\n" * 2**18):
        with closing(patient.open()) as connection:
            try:
                connection.sendall(chunked + more)
            except ConnectionError:
                continue
            assert b"200" not in until_closed(connection)


def test_two_requests_at_once_are_both_answered(patient: Served) -> None:
    with closing(patient.open()) as connection:
        large = GOOD.replace(b": 3", b": 99999")[:-3] + b"x" * 99_999
        connection.sendall(large + GOOD + large + GOOD)
        assert [answer(connection) for _ in range(4)] == [b"99999", b"3", b"99999", b"3"]


OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"


@pytest.mark.fault(
    AREA,
    "a client offers another protocol with its request, as Java's offers HTTP/2 (all servers)",
    "the request is answered as if it had not",
)
@pytest.mark.parametrize("pieces", [1, 2, 60])
@pytest.mark.parametrize(
    ("sent", "told"),
    [
        ((HEAD % b"all") + OFFER + b"\r\nabc", [b"3"]),
        ((HEAD % b"none") + OFFER + b"\r\nabc", [b"0"]),
        (GOOD + (HEAD % b"all") + OFFER + b"\r\nabc" + GOOD, [b"3", b"3", b"3"]),
        (((HEAD % b"all") + OFFER + b"\r\nabc") * 300, [b"3"] * 300),
        ((HEAD % b"all") + b"Upgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n\r\nabc" + GOOD, [b"3", b"3"]),
        ((HEAD % b"all") + b"upgrade: TLS/1.0\r\nUPGRADE: h2c\r\nconnection: upgrade\r\n\r\nabc" + GOOD, [b"3", b"3"]),
        (b"GET /all HTTP/1.1\r\nHost: x\r\n" + OFFER + b"\r\n" + GOOD, [b"0", b"3"]),
        (
            (HEAD % b"all").replace(b"Content-Length: 3", b"Transfer-Encoding: chunked")
            + OFFER
            + b"\r\n3\r\nabc\r\n0\r\n\r\n"
            + GOOD,
            [b"3", b"3"],
        ),
        ((HEAD % b"all").replace(b"HTTP/1.1", b"HTTP/1.0") + OFFER + b"\r\nabc", [b"3"]),
        ((HEAD % b"all") + OFFER.replace(b"Upgrade,", b"close, Upgrade,") + b"\r\nabc", [b"3"]),
    ],
)
def test_an_offer_of_another_protocol_is_not_taken(
    patient: Served, sent: bytes, told: list[bytes], pieces: int
) -> None:
    step = -(-len(sent) // pieces)
    with closing(patient.open()) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for place in range(0, len(sent), step):
            connection.sendall(sent[place : place + step])
        assert [answer(connection) for _ in told] == told


def test_an_offer_waits_for_the_body_that_the_server_asks_for(patient: Served) -> None:
    with closing(patient.open()) as connection:
        connection.sendall((HEAD % b"all") + OFFER + b"Expect: 100-continue\r\n\r\n")
        assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(BODY)
        assert answer(connection) == b"3"
        connection.sendall(b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n" + OFFER + b"\r\n")
        assert until_closed(connection).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_comes_as_soon_as_the_address_is_told_ends_the_server_in_order(number: int) -> None:
    events: list[str] = []

    async def app(scope, receive, send) -> None:
        while (event := (await receive())["type"]) != "lifespan.shutdown":
            await send({"type": f"{event}.complete"})
        events.append("closed")
        await send({"type": "lifespan.shutdown.complete"})

    def ready() -> None:
        events.append("told")
        signal.raise_signal(number)

    with (
        signals_as_ctrl_c(),
        on_ctrl_c(lambda: events.append("heard afterwards")),
        closing(bound_socket("127.0.0.1", 0)) as listener,
    ):
        asyncio.run(serve_until_signal(server_config(Guarded(app, PlainTextResponse), lifespan=True), listener, ready))
    assert events == ["told", "closed", "heard afterwards"]
