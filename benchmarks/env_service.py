"""What a step costs through the environment service while 256 instances are alive, beside an empty request.

    .venv/bin/python benchmarks/env_service.py              # a minute
    .venv/bin/python benchmarks/env_service.py --instances 1024 --steps 5

`astune env serve` runs in a process of its own, the client in this one, so each has a core of two. Every instance
steps as soon as it has the reply to its last step, all at the same time, so latency is instances over steps per
second. In each round every client makes fresh instances, asks `/health` from as many tasks at once (the empty request,
the limit: the same server, the same client), steps, evaluates and releases. "of empty" is the median over rounds of
the ratio, "alone" that of a step's time while nothing else is asked.

    bare       this file's connections, which write and read bytes: what the server can do
    client     astune.clients.env_service.EnvServiceClient: what an episode sees

The environment `echo` answers at once; `FrozenLake` is Gymnasium's, if it is installed. A step is lost if it has no
reply with success. Memory is the growth of the server's resident set over the first round's instances, the connections
that made them included. Ends with 1 if a step is lost or an instance is left.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
from bench_table import table_of
from rich.console import Console

from astune.clients.env_requests import exchange
from astune.clients.env_service import EnvInstance, EnvServiceClient
from astune.environment import Action, Environment, Instance, Message, Observation
from astune.errors import EnvServiceError

MESSAGE = {"role": "assistant", "content": "left"}


class EchoInstance(Instance):
    steps = 0

    def first_messages(self) -> Sequence[Message]:
        return [{"role": "user", "content": "Say something."}]

    def step(self, action: Action) -> Observation:
        self.steps += 1
        return Observation(({"role": "user", "content": f"{action.text} {self.steps}"},), info={"steps": self.steps})

    def evaluate(self) -> float:
        return 1.0


class Echo(Environment):
    env_type = "echo"

    def task_ids(self, split: str) -> Sequence[str]:
        return ["0"]

    def create(self, task_id: str, params: Mapping[str, Any]) -> Instance:
        return EchoInstance()


class Server:
    """`astune env serve` of one environment."""

    def __init__(self, arguments: Sequence[str], instances: int) -> None:
        command = [sys.executable, "-m", "astune", "env", "serve", "--env", *arguments, "--port", "0"]
        self.process = subprocess.Popen(
            [*command, "--max-instances", str(instances)], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().split()[-1]
        self.task_id = EnvServiceClient(self.url).task_ids("train")[0]

    def resident(self) -> int:
        """Bytes."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))

    def close(self) -> int:
        """How many instances it still had."""
        live = int(httpx.get(f"{self.url}/health").json()["live_instances"])
        self.process.terminate()
        self.process.wait()
        return live


class Connection(asyncio.Protocol):
    """One request at a time over one connection that stays open."""

    def connection_made(self, transport: Any) -> None:
        self.transport, self._received = transport, b""

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, body = self._received.partition(b"\r\n\r\n")
        if found and len(body) >= int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]):
            self._received = b""
            self._reply.set_result(body)

    async def ask(self, request: bytes) -> bytes:
        self._reply: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return await self._reply


def request(call: str, body: Mapping[str, Any] | None, key: str = "") -> bytes:
    content = b"" if body is None else json.dumps(body).encode()
    head = f"{'GET' if body is None else 'POST'} /{call} HTTP/1.1\r\nHost: 127.0.0.1\r\nIdempotency-Key: {key}\r\n"
    return f"{head}Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content


class Bare:
    """Asks as one task per connection."""

    name = "bare"

    async def open(self, server: Server, names: Sequence[str]) -> None:
        parts = urlsplit(server.url)
        loop = asyncio.get_running_loop()
        self.of = {name: (await loop.create_connection(Connection, parts.hostname, parts.port))[1] for name in names}

    async def empty(self, name: str) -> bool:
        return b'"ok"' in await self.of[name].ask(request("health", None))

    async def step(self, name: str, number: int) -> bool:
        body = {"instance_id": name, "messages": MESSAGE}
        return b'"success":true' in await self.of[name].ask(request("step", body, str(number)))

    async def close(self) -> None:
        for connection in self.of.values():
            connection.transport.close()


class Client:
    """ASTune's own."""

    name = "client"

    async def open(self, server: Server, names: Sequence[str]) -> None:
        self.client = EnvServiceClient(server.url, retries=0)
        self.of = {name: EnvInstance(server.url, name) for name in names}

    async def empty(self, name: str) -> bool:
        return (await exchange("GET", f"{self.client.url}/health", b"", {}, 60.0)).status == 200

    async def step(self, name: str, number: int) -> bool:
        try:
            return bool((await self.client.step(self.of[name], MESSAGE, number=number)).messages)
        except EnvServiceError:
            return False

    async def close(self) -> None:
        pass


async def timed(calls: Sequence[Callable[[], Awaitable[bool]]], times: list[float]) -> int:
    """One after the other; how many failed."""
    lost = 0
    for call in calls:
        started = time.perf_counter()
        lost += not await call()
        times.append(time.perf_counter() - started)
    return lost


async def at_once(each: Sequence[Sequence[Callable[[], Awaitable[bool]]]], times: list[float]) -> tuple[float, int]:
    """Calls per second, and how many failed."""
    started = time.perf_counter()
    lost = sum(await asyncio.gather(*(timed(calls, times) for calls in each)))
    return sum(map(len, each)) / (time.perf_counter() - started), lost


class Figures:
    """Of one environment and client, over the rounds."""

    def __init__(self) -> None:
        self.empty: list[float] = []
        self.steps: list[float] = []
        self.times: list[float] = []
        self.alone: list[float] = []
        self.lost = 0

    def row(self) -> list[str]:
        times = sorted(1000 * seconds for seconds in self.times)
        share = statistics.median(step / empty for step, empty in zip(self.steps, self.empty, strict=True))
        speeds = [f"{statistics.median(values):,.0f}" for values in (self.empty, self.steps)]
        alone = f"{1000 * statistics.median(self.alone):.2f}"
        delays = [f"{times[len(times) // 2]:.1f}", f"{times[int(0.99 * len(times))]:.1f}"]
        return [*speeds, f"{share:.2f}", alone, *delays, f"{len(times):,}", str(self.lost)]


async def play(server: Server, way: Bare | Client, steps: int, names: Sequence[str], figures: Figures) -> int:
    """One round; how many bytes the server grew by while it made the instances."""
    client = EnvServiceClient(server.url)
    before = server.resident()
    await asyncio.gather(*(client.create(None, server.task_id, name) for name in names))
    grown = server.resident() - before
    await way.open(server, names)
    await at_once([[lambda name=name: way.empty(name)] * 3 for name in names], [])  # opens the connections
    speed, lost = await at_once([[lambda name=name: way.empty(name)] * steps for name in names], [])
    figures.empty.append(speed)
    figures.lost += lost + await timed([lambda n=n: way.step(names[0], n) for n in range(steps)], figures.alone)
    each = [[lambda name=name, n=n: way.step(name, steps + n) for n in range(steps)] for name in names]
    speed, lost = await at_once(each, figures.times)
    figures.steps.append(speed)
    figures.lost += lost
    await asyncio.gather(*(client.evaluate(EnvInstance(server.url, name)) for name in names))
    await asyncio.gather(*(client.release(EnvInstance(server.url, name)) for name in names))
    await way.close()
    return grown


def main(options: argparse.Namespace) -> int:
    servers = {"echo": [f"{__file__}:Echo"]}
    if find_spec("gymnasium"):
        servers["FrozenLake"] = ["gymnasium:FrozenLake-v1", "--option", "is_slippery=false"]  # left: stays
    rows: list[Sequence[str]] = []
    memory, faults = [], 0
    for environment, arguments in servers.items():
        server = Server(arguments, options.instances)
        figures = {"bare": Figures(), "client": Figures()}
        grown = []
        for number in range(options.rounds):
            for way in (Bare(), Client()):
                names = [f"{number}-{way.name}-{one}" for one in range(options.instances)]
                grown.append(asyncio.run(play(server, way, options.steps, names, figures[way.name])))
        for name, each in figures.items():
            rows.append((environment, name, *each.row()))
            faults += each.lost
        left = server.close()
        faults += left
        memory.append(
            f"{environment}: {grown[0] / options.instances / 1024:.1f} kB per instance, {left} left at the end"
        )
    console = Console(width=110)
    columns = ("empty/s", "steps/s", "of empty", "alone ms", "p50 ms", "p99 ms", "steps", "lost")
    title = f"{options.instances} live instances, {options.rounds} rounds"
    console.print(table_of(title, ("environment", "asked by", *columns), rows, left=2))
    console.print("\n".join(memory))
    return 1 if faults else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instances", type=int, default=256)
    parser.add_argument(
        "--steps", type=int, default=15, help="of each instance, client and round; twice as many are made"
    )
    parser.add_argument("--rounds", type=int, default=3)
    sys.exit(main(parser.parse_args()))
