"""What a model call costs through the gateway, beside a bare server of the same framework that answers at once.

    python benchmarks/gateway.py
    python benchmarks/gateway.py --concurrency 64 --calls 20000 --rate 200

Three servers, each in a process of its own, take turns; one client in this process, the same for all:

    bare               Starlette on uvicorn: reads the body, sends a fixed answer
    gateway            the endpoint of ASTune, before an episode that has its answer ready
    gateway + tracker  a whole call: rendered, tokenized, answered by a script, recorded as a turn

Two ways to ask. Saturated: every connection sends its next request as soon as it has an answer, so latency is the
number of connections divided by the throughput. At a fixed rate, well below saturation: requests come at random times
(a Poisson process, a seed of its own for each round) over as many open connections, and latency is what one call
takes. Latency is from the first byte sent to the last one received. "over bare" is the median over rounds of the
difference to the bare server of the same round. A call is lost if it has no answer with status 200, or if the tracker
has no turn for it.

The bare server is the limit: nothing behind the same framework can be faster. The client is one process on asyncio;
with two cores it has one to itself.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

from bench_table import table_of
from rich.console import Console
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.context_tracker.tracker import ChatAnswer, ChatRequest, ContextTracker
from astune.gateway.app import Endpoint, OpenAIApp
from astune.gateway.server import HttpServer
from astune.support.short_pauses import short_pauses
from astune.testing import ScriptedPolicy, write_test_model_dir
from astune.types import Sampling, Task, Turn
from astune.workflow.tuner import Tuner

SERVERS = ("bare", "gateway", "gateway + tracker")
ANSWER = "The result of the calculation is 42, and here is how it came about: six times seven."
TOOL = {
    "type": "function",
    "function": {
        "name": "calculate",
        "description": "Evaluate an arithmetic expression and return its value.",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
    },
}
MESSAGES = [
    {"role": "system", "content": "You are a careful assistant that answers questions about numbers. " * 4},
    {"role": "user", "content": "What is six times seven? Use the tool and then explain in a sentence."},
    {
        "role": "assistant",
        "content": "I use the tool.",
        "tool_calls": [
            {
                "id": "call_0_0",
                "type": "function",
                "function": {"name": "calculate", "arguments": '{"expression": "6 * 7"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "call_0_0", "content": "42"},
]
BODY = json.dumps({"model": "policy", "messages": MESSAGES, "tools": [TOOL], "temperature": 1.0}).encode()


# -- the servers, each in a process of its own --------------------------------------------------------------------


async def serve_bare(sessions: int) -> tuple[list[str], Callable[[], int]]:
    body = b'{"id":"answer_0","object":"chat.completion","choices":[],"padding":"' + b"x" * 400 + b'"}'
    served = 0

    async def answer(request: Request) -> Response:
        nonlocal served
        await request.body()
        served += 1
        return Response(body, media_type="application/json")

    app = Starlette(routes=[Route("/{token}/v1/chat/completions", answer, methods=["POST"])])
    server = HttpServer(SimpleNamespace(asgi=app))
    return [f"{server.origin}/{session}/v1" for session in range(sessions)], lambda: served


async def serve_gateway(sessions: int) -> tuple[list[str], Callable[[], int]]:
    turn = Turn("agent", (1,) * 200, (2,) * 40, (-1.0,) * 40, 0, "stop")
    answer = ChatAnswer("answer_0", {"role": "assistant", "content": ANSWER}, "stop", 200, 40, turn)
    served = 0

    async def choices(request: ChatRequest, n: int) -> list[ChatAnswer]:
        nonlocal served
        served += 1
        return [answer]

    with tempfile.TemporaryDirectory() as folder:
        chat_format = ChatFormat.load(write_test_model_dir(Path(folder)))
    app = OpenAIApp()
    server = HttpServer(app)
    endpoint = Endpoint(
        "agent", choices, chat_format, asyncio.get_running_loop(), threading.get_ident(), "x", 4096, print, print
    )
    return [f"{server.origin}/{app.add(endpoint)}/v1" for _ in range(sessions)], lambda: served


async def serve_tracker(sessions: int) -> tuple[list[str], Callable[[], int]]:
    with tempfile.TemporaryDirectory() as folder:
        chat_format = ChatFormat.load(write_test_model_dir(Path(folder)))
    trackers, urls = [], []
    for session in range(sessions):
        policy = ScriptedPolicy(lambda prompt: ANSWER, chat_format)
        tracker = ContextTracker(policy, chat_format, Sampling(max_tokens=256), max_turns=10**9, seed=session)
        tuner = Tuner(Task("task", "?"), f"benchmark/{session}", tracker)
        trackers.append(tracker)
        urls.append(tuner.base_url())
    return urls, lambda: sum(len(tracker.turns) for tracker in trackers)


async def serve(name: str, sessions: int) -> None:
    """Print the URLs, serve until the input ends, print how many calls were served."""
    start: dict[str, Callable[[int], Awaitable[tuple[list[str], Callable[[], int]]]]] = {
        "bare": serve_bare,
        "gateway": serve_gateway,
        "gateway + tracker": serve_tracker,
    }
    urls, served = await start[name](sessions)
    print(json.dumps(urls), flush=True)
    with short_pauses():  # as where episodes are played
        await asyncio.to_thread(sys.stdin.read)
    print(served(), flush=True)


class Server:
    """A server process, which `script` begins with these options, and how many calls were sent to it."""

    def __init__(self, name: str, sessions: int, *options: str, script: str = __file__) -> None:
        self.name = name
        command = [sys.executable, script, "--serve", name, "--sessions", str(sessions), *options]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.urls: list[str] = json.loads(self._process.stdout.readline())
        self.sent = 0

    def close(self) -> int:
        """How many of the calls that were answered it has not recorded."""
        return self.sent - int(self._process.communicate()[0])


# -- the client ---------------------------------------------------------------------------------------------------


class Connection(asyncio.Protocol):
    """One call at a time over one connection that stays open."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        head = f"POST {parts.path}/chat/completions HTTP/1.1\r\nHost: {parts.netloc}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(BODY)}\r\n\r\n"
        self._request = head.encode() + BODY
        self._received = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, body = self._received.partition(b"\r\n\r\n")
        if found and len(body) >= int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]):
            self._seconds = time.perf_counter() - self._sent
            self._received = b""
            self._answer.set_result(head.startswith(b"HTTP/1.1 200"))

    def connection_lost(self, error: Exception | None) -> None:
        if not self._answer.done():
            self._answer.set_result(False)

    async def call(self) -> tuple[bool, float]:
        """Whether the call was answered, and its seconds."""
        self._answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._sent = time.perf_counter()
        self._transport.write(self._request)
        return await self._answer, self._seconds

    def close(self) -> None:
        self._transport.close()


async def connect(urls: list[str], kind: type[Connection] = Connection) -> list[Connection]:
    loop = asyncio.get_running_loop()
    connections = [kind(url) for url in urls]
    for connection, url in zip(connections, urls, strict=True):
        parts = urlsplit(url)
        await loop.create_connection(lambda connection=connection: connection, parts.hostname, parts.port)
    return connections


async def saturated(connections: list[Connection], calls: int) -> tuple[list[tuple[bool, float]], float]:
    """`calls` calls, each connection one after the other; and the seconds it took."""
    left = iter(range(calls))
    answers: list[tuple[bool, float]] = []

    async def work(connection: Connection) -> None:
        for _ in left:
            answers.append(await connection.call())

    started = time.perf_counter()
    await asyncio.gather(*(work(connection) for connection in connections))
    return answers, time.perf_counter() - started


async def at_rate(connections: list[Connection], calls: int, rate: float, seed: int) -> list[tuple[bool, float]]:
    """`calls` calls at random times, on average `rate` per second, each on the connection that is free longest."""
    free = asyncio.Queue[Connection]()
    for connection in connections:
        free.put_nowait(connection)
    draw = random.Random(seed)

    async def call() -> tuple[bool, float]:
        connection = await free.get()
        answer = await connection.call()
        free.put_nowait(connection)
        return answer

    jobs = []
    due = time.perf_counter()
    for _ in range(calls):
        due += draw.expovariate(rate)
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        jobs.append(asyncio.ensure_future(call()))
    return await asyncio.gather(*jobs)


# -- the tables ---------------------------------------------------------------------------------------------------


class Figures:
    """What one server gave in one way of asking: a list of (p50, p99, calls/s), one per round, in ms."""

    def __init__(self) -> None:
        self.rounds: list[tuple[float, float, float]] = []
        self.lost = 0

    def add(self, answers: list[tuple[bool, float]], calls_per_second: float) -> None:
        milliseconds = sorted(1000 * seconds for _, seconds in answers)
        middle, tail = milliseconds[len(milliseconds) // 2], milliseconds[int(0.99 * len(milliseconds))]
        self.rounds.append((middle, tail, calls_per_second))
        self.lost += sum(not answered for answered, _ in answers)

    def medians(self) -> list[float]:
        return [statistics.median(values) for values in zip(*self.rounds, strict=True)]

    def over(self, bare: Figures) -> list[float]:
        pairs = zip(self.rounds, bare.rounds, strict=True)
        differences = [[mine - theirs for mine, theirs in zip(*pair, strict=True)] for pair in pairs]
        return [statistics.median(values) for values in zip(*differences, strict=True)]


async def measure(
    servers: Sequence[Server],
    concurrency: int,
    options: argparse.Namespace,
    kind: type[Connection] = Connection,
) -> dict[str, list[Figures]]:
    """By server: the figures of both ways to ask."""
    figures: dict[str, list[Figures]] = {server.name: [Figures(), Figures()] for server in servers}
    for number in range(options.rounds):
        for server in servers:
            connections = await connect(server.urls[:concurrency], kind)
            warm, _ = await saturated(connections, options.calls // 10 + concurrency)
            answers, seconds = await saturated(connections, options.calls)
            figures[server.name][0].add(answers, len(answers) / seconds)
            calls = min(options.calls, int(options.seconds * options.rate))
            spread = await at_rate(connections, calls, options.rate, number)
            figures[server.name][1].add(spread, options.rate)
            server.sent += sum(answered for answered, _ in (*warm, *answers, *spread))
            for connection in connections:
                connection.close()
    return figures


def show(console: Console, title: str, base: str, found: dict[int, dict[str, Figures]]) -> None:
    """A row for each server, beside the server `base`."""
    rows = []
    for sessions, figures in found.items():
        for name, each in figures.items():
            middle, tail, speed = each.medians()
            over = each.over(figures[base])
            more = ["", ""] if name == base else [f"{value:+.2f}" for value in over[:2]]
            rows.append((str(sessions), name, f"{middle:.2f}", f"{tail:.2f}", f"{speed:,.0f}", *more, str(each.lost)))
    columns = ("sessions", "server", "p50 ms", "p99 ms", "calls/s", f"p50 over {base}", f"p99 over {base}", "lost")
    console.print(table_of(title, columns, rows, left=2))


async def main(options: argparse.Namespace) -> None:
    servers = [Server(name, max(options.concurrency)) for name in SERVERS]
    found = {concurrency: await measure(servers, concurrency, options) for concurrency in options.concurrency}
    console = Console()
    ways = ("Saturated", f"At {options.rate:g} calls/s")
    for way, title in enumerate(ways):
        show(console, title, "bare", {n: {name: each[way] for name, each in by.items()} for n, by in found.items()})
    for server in servers:
        console.print(f"{server.name}: {server.sent:,} calls answered, {server.close()} of them not recorded")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 64, 512], help="open sessions")
    parser.add_argument("--calls", type=int, default=3000, help="calls per server, round and way")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", type=float, default=200.0, help="calls per second of the second way")
    parser.add_argument("--seconds", type=float, default=10.0, help="at most so long per server and round at that rate")
    parser.add_argument("--serve", choices=SERVERS, help=argparse.SUPPRESS)
    parser.add_argument("--sessions", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    asyncio.run(serve(arguments.serve, arguments.sessions) if arguments.serve else main(arguments))
