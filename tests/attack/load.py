"""512 sessions at once at the endpoint for agents, over HTTP, for minutes; every eighth misbehaves between its calls.

A session lasts for a few calls, then another takes its place, as episodes do. Every answer must come, must be its own
session's, and must be recorded as one turn; the server's memory must not grow and its loop must stay free.
"""

from __future__ import annotations

import asyncio
import json
import random
import resource
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

from tests.attack.exchange import exchange
from tests.attack.found import Found
from tests.attack.servers import Served

CALLS = 8
"""Of each session."""
PAUSE = 2.0
"""Seconds between the calls of a session, on average."""
SLOWEST_MODELS = 1.0
"""Seconds that the list of models may take in 99 of 100 times: it waits for nothing but the loop."""
MOST_GROWTH = 1.1
"""The server's memory at the end, against a third of the way."""
CLOSING_SECONDS = 30.0
"""In which a server has closed the connections of clients that are gone."""
NAUGHTY = (
    b"POST %s/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 900\r\n\r\n{",  # hangs up in its body
    b"POST %s/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}",
    b"POST %s/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 40\r\n\r\n" + b"[" * 40,
    b"POST /nobody%s/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
    b"\x16\x03\x01%s",
    b"POST %s/chat/comple",
)


class Figures:
    def __init__(self) -> None:
        self.calls = self.lost = self.strangers = self.unrecorded = self.sessions = 0
        self.seconds: list[float] = []
        self.models: list[float] = []
        self.memory: list[float] = []
        self.faults: set[str] = set()


async def _session(served: Served, figures: Figures, naughty: bool, end: float, draw: random.Random) -> None:
    """One session after another, until it is time to end."""
    await asyncio.sleep(draw.uniform(0, PAUSE))
    while time.monotonic() < end:
        reader, writer = await asyncio.open_connection(served.host, served.door)
        url, name = json.loads(await reader.readline())
        answered = 0
        for _ in range(CALLS):
            if naughty:
                await _misbehave(served, urlsplit(url).path.encode(), draw)
            answered += await _call(served, figures, urlsplit(url).path, name)
            await asyncio.sleep(draw.uniform(0, 2 * PAUSE))
            if time.monotonic() > end:
                break
        writer.write(b"end\n")
        turns = int(await reader.readline())
        writer.close()
        figures.sessions += 1
        figures.unrecorded += turns != answered


async def _call(served: Served, figures: Figures, path: str, name: str) -> bool:
    """Whether a call was answered."""
    body = json.dumps({"model": "policy", "messages": [{"role": "user", "content": f"Who are you, {name}?"}]})
    head = f"POST {path}/chat/completions HTTP/1.1\r\nHost: {served.authority}\r\nContent-Length: {len(body)}\r\n\r\n"
    began = time.monotonic()
    figures.calls += 1
    try:
        status, answer = await asyncio.wait_for(exchange(served.host, served.port, (head + body).encode()), 60)
    except (OSError, EOFError, asyncio.TimeoutError) as error:
        figures.faults.add(type(error).__name__)
        status, answer = 0, b""
    figures.seconds.append(time.monotonic() - began)
    if status != 200:
        figures.lost += 1
        figures.faults.add(str(status))
    elif json.loads(answer)["choices"][0]["message"]["content"] != f"I am {name}.":
        figures.strangers += 1
    return status == 200


async def _misbehave(served: Served, path: bytes, draw: random.Random) -> None:
    """Something that is no call, and no wait for an answer."""
    try:
        _, writer = await asyncio.open_connection(served.host, served.port)
        writer.write(draw.choice(NAUGHTY) % path)
        await asyncio.sleep(draw.uniform(0, 0.1))
        writer.close()
    except OSError:
        return


async def _watch(served: Served, figures: Figures, end: float) -> None:
    while time.monotonic() < end:
        began = time.monotonic()
        await _list_models(served)
        figures.models.append(time.monotonic() - began)
        figures.memory.append(served.memory())
        await asyncio.sleep(0.25)


async def _list_models(served: Served) -> None:
    path = served.request.path.replace("chat/completions", "models")
    await exchange(served.host, served.port, f"GET {path} HTTP/1.1\r\nHost: {served.authority}\r\n\r\n".encode())


async def _load(served: Served, sessions: int, seconds: float, seed: int) -> Figures:
    figures, end = Figures(), time.monotonic() + seconds
    work = [_session(served, figures, n % 8 == 0, end, random.Random(seed + n)) for n in range(sessions)]
    await asyncio.gather(_watch(served, figures, end), *work)
    return figures


def attack(seconds: float = 300.0, sessions: int = 512, seed: int = 0) -> Iterator[Found]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(8192, hard)), hard))
    with Served("gateway") as served:
        asyncio.run(_list_models(served))  # its event loop has opened its files by then
        before = served.open_files()
        figures = asyncio.run(_load(served, sessions, seconds, seed))
        until = time.monotonic() + CLOSING_SECONDS
        while (left := served.open_files() - before) > 2 and time.monotonic() < until:
            time.sleep(0.1)
        traces = served.tracebacks()
    yield from _verdicts(figures)
    yield Found("load: connections left open", left <= 2, str(left))
    yield Found("load: tracebacks in the log", not traces, "; ".join(sorted(set(traces)))[:200])


def _verdicts(figures: Figures) -> Iterator[Found]:
    calls = f"{figures.calls:,} calls of {figures.sessions:,} sessions"
    faults = f" {sorted(figures.faults)}" if figures.faults else ""
    yield Found(
        "load: every call is answered", figures.calls > 0 == figures.lost, f"{calls}, lost {figures.lost}{faults}"
    )
    yield Found("load: every answer is its session's", figures.strangers == 0, f"{figures.strangers} of another")
    yield Found("load: every answer is one turn", figures.unrecorded == 0, f"{figures.unrecorded} sessions not")
    yield Found("load: latency of a call", True, percentiles(figures.seconds))
    models = _at(figures.models, 0.99) < SLOWEST_MODELS
    yield Found("load: the loop stays free (list of models)", models, percentiles(figures.models))
    early, late = figures.memory[len(figures.memory) // 3], figures.memory[-1]
    yield Found(
        "load: memory stays", late < early * MOST_GROWTH, f"{early:.0f} MiB at a third, {late:.0f} MiB at the end"
    )


def _at(seconds: list[float], share: float) -> float:
    return sorted(seconds)[int(share * (len(seconds) - 1))]


def percentiles(seconds: list[float]) -> str:
    return ", ".join(f"p{share} {1000 * _at(seconds, share / 100):.0f} ms" for share in (50, 90, 99, 100))
