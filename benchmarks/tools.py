"""What a call of a tool costs through `tuner.tools`, beside the bare client of the package `mcp`, and what a server of
its own costs an episode.

    .venv/bin/python benchmarks/tools.py                          # six minutes
    .venv/bin/python benchmarks/tools.py --sessions 1 16 --rounds 1 --calls 5 --episodes 16

The server answers at once, over standard input and output. In each round every session makes its calls one after the
other, all sessions side by side, in each way:

    bare       one client of the package, shared by all
    shared     `tuner.tools`, one server for all
    episode    `tuner.tools`, a server for each, at most --servers at a time, reset by a tool before the next one has it

Latency is that of a call. For `episode` it has no waiting for a server, which calls per second have. "of bare" are the
medians over rounds of the ratios of calls per second, and of the rounds' median latencies.

Then the tokens per second of the shipped model, which --episodes agents ask in turn, each three times with a call of
the tool after each answer: sharing a server (`shared`), with a reset one each, sharing one that is reached over HTTP,
with a session of their own at it, new or reset, and with one that is started anew for each. All ways sample the same
tokens. The rounds take turns; the ratio to `shared` is the median over rounds. Then the start of a server, and a reset.

Then sandboxes (`AstuneSandbox`, where bubblewrap is there): the start of a fresh one until it takes commands, a reset,
which ends one and starts another; the processor's time of one from its start to its end, and commands (`true`) per
second in one sandbox, and in 32 side by side.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
from bench_table import table_of
from rich.console import Console

from astune.backbone.local.engine import load_engine
from astune.config.load import load_config
from astune.config.rollout import SandboxLimits
from astune.config.tools import ToolsConfig
from astune.rollout.group import run_groups
from astune.support.http.serving import bound_socket
from astune.tools import ToolServers
from astune.training.rollout_setup import sampling_for
from astune.training.rollout_workers.pool import set_up_rollouts
from astune.types import Task, WorkflowOutput
from astune.workflow.episode_tools import EpisodeTools
from astune.workflow.tool_log import ToolLog
from astune.workflow.workflow_base import as_workflow
from astune.workspaces.agentscope_backend import SandboxWorkspace
from astune.workspaces.sandbox import Sandbox

Session = Callable[[int], Awaitable[list[float]]]
"""Makes the calls of the session of that number; the seconds of each."""
WAYS = ("bare", "shared", "episode")
DEMO = Path(__file__).parents[1] / "tutorial" / "math_agent" / "demo.yaml"


SERVER = """
import sys

from mcp.server.fastmcp import FastMCP
from mcp.types import ToolAnnotations

port = int(sys.argv[1]) if sys.argv[1:] else 8000
server = FastMCP("echo", log_level="ERROR", port=port)

@server.tool(annotations=ToolAnnotations(readOnlyHint=True))
def echo(text: str) -> str:
    return text

@server.tool()
def reset() -> str:
    return "done"

server.run("streamable-http" if sys.argv[1:] else "stdio")
"""


def config_of(way: str, servers: int) -> ToolsConfig:
    own = {"isolation": "episode", "reset": "reset", "most": servers, "warm": servers} if way == "episode" else {}
    return ToolsConfig.model_validate({"servers": {"echo": {"command": ["python", "-c", SERVER], **own}}})


async def time_calls(call: Callable[[], Awaitable[Any]], calls: int) -> list[float]:
    taken = []
    for _ in range(calls):
        began = time.perf_counter()
        await call()
        taken.append(time.perf_counter() - began)
    return taken


@asynccontextmanager
async def open_way(way: str, calls: int, servers: int) -> AsyncIterator[Session]:
    """Give the sessions of one way, whose servers live as long as the block."""
    if way == "bare":
        import mcp

        parameters = mcp.StdioServerParameters(command=sys.executable, args=["-c", SERVER])
        async with mcp.stdio_client(parameters) as streams, mcp.ClientSession(*streams[:2]) as session:
            await session.initialize()
            yield lambda number: time_calls(lambda: session.call_tool("echo", {"text": "hello"}), calls)
        return
    async with ToolServers(config_of(way, servers)) as opened:

        async def play(number: int) -> list[float]:
            tools = EpisodeTools(ToolLog(), asyncio.get_running_loop(), lambda: None)
            tools.servers = await opened.take(Task(f"t{number}", ""))
            try:
                return await time_calls(lambda: tools.call("echo", {"text": "hello"}), calls)
            finally:
                tools.close()

        yield play


async def measure(sessions: int, calls: int, rounds: int, servers: int) -> list[list[str]]:
    """The rows of so many sessions."""
    rates: dict[str, list[float]] = {way: [] for way in WAYS}
    medians: dict[str, list[float]] = {way: [] for way in WAYS}
    latencies: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(rounds + 1):  # the first one warms up
        for way in WAYS:
            async with open_way(way, calls, min(servers, sessions)) as play:
                await play(-1)
                began = time.perf_counter()
                taken = await asyncio.gather(*(play(each) for each in range(sessions)))
                seconds = time.perf_counter() - began
            if number:
                rates[way].append(sessions * calls / seconds)
                of_round = [each for of_session in taken for each in of_session]
                medians[way].append(statistics.median(of_round))
                latencies[way] += of_round
    rows = []
    for way in WAYS:
        found = sorted(latencies[way])
        p50, p99 = (1000 * found[min(len(found) - 1, int(part * len(found)))] for part in (0.5, 0.99))
        rate = f"{statistics.median(rates[way]):,.0f}"
        of_bare = [median_ratio(mine[way], mine["bare"]) for mine in (rates, medians)]
        rows.append([str(sessions), way, rate, of_bare[0], f"{p50:.2f}", of_bare[1], f"{p99:.2f}"])
    return rows


def median_ratio(mine: list[float], others: list[float]) -> str:
    return f"{statistics.median(one / other for one, other in zip(mine, others, strict=True)):.2f}"


async def use_tool(task: Task, tuner: Any) -> WorkflowOutput:
    client = tuner.openai_client()
    for number in range(3):
        messages = [{"role": "user", "content": f"{task.query} {number}"}]
        await client.chat.completions.create(model="m", messages=messages, tools=tuner.tools.openai)
        await tuner.tools.call("echo", {"text": "hello"})
    return WorkflowOutput(answer="", reward=0.0)


@contextmanager
def serve() -> Iterator[str]:
    """The address of a server over HTTP."""
    with bound_socket("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, "-c", SERVER, str(port)], stderr=subprocess.DEVNULL)
    try:
        while process.poll() is None:
            try:
                httpx.get(f"http://127.0.0.1:{port}/")
                break
            except httpx.ConnectError:
                time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        process.wait()


async def measure_tokens(episodes: int, rounds: int) -> list[list[str]]:
    """Tokens per second of so many agents side by side, by how they have their server."""
    config = load_config(DEMO, ["astune.rollout.max_tokens=48"]).config.astune
    engine = load_engine(config)
    tasks = [Task(f"t{number}", f"What is {number} + 7?", answer="4") for number in range(episodes)]
    own, command = {"isolation": "episode", "most": episodes}, {"command": ["python", "-c", SERVER]}
    rates: dict[str, list[float]] = {}
    async with AsyncExitStack() as stack:
        address = stack.enter_context(serve())
        servers: dict[str, dict[str, Any]] = {
            "shared": command,
            "reset": {**own, **command, "reset": "reset", "warm": episodes},
            "http": {"url": address},
            "session": {**own, "url": address, "warm": episodes},
            "session, reset": {**own, "url": address, "reset": "reset", "warm": episodes},
            "restart": {**own, **command, "warm": 4},
        }
        setups = {}
        for way, server in servers.items():
            tools = ToolsConfig.model_validate({"servers": {"echo": {**server, "allow": ["echo"]}}})
            setup = set_up_rollouts(config.model_copy(update={"tools": tools}), engine)
            setups[way] = replace(setup, workflow_factory=as_workflow(use_tool))
            await stack.enter_async_context(setups[way].open())
        for number in range(rounds + 1):
            for way, setup in setups.items():
                began = time.perf_counter()
                options = {"seed": 1, "sampling": sampling_for(config, "sampled"), "max_concurrent": episodes}
                groups = await run_groups(tasks, 1, setup, label=str(number), **options)  # the same tokens each way
                seconds = time.perf_counter() - began
                played = [episode for group in groups for episode in group.episodes]
                assert not any(episode.error for episode in played), played[0].error
                if number:
                    tokens = sum(episode.metrics["output_tokens"] for episode in played)
                    rates.setdefault(way, []).append(tokens / seconds)
    return [
        [way, f"{statistics.median(rate):,.0f}", median_ratio(rate, rates["shared"])] for way, rate in rates.items()
    ]


async def measure_starts(times: int) -> list[list[str]]:
    """Milliseconds of a start, and of a reset."""
    starts, resets = [], []
    for _ in range(times):
        async with ToolServers(config_of("episode", 1)) as servers:
            starts.append(1000 * servers.first["echo"].start_seconds)
            for _ in range(20):
                began = time.perf_counter()
                tools = await servers.take(Task("t", ""))
                resets.append(1000 * (time.perf_counter() - began))
                await tools.call("echo", {"text": "hello"})
                tools.give_back()
            del resets[-20]  # the first one had nothing to reset
    return [
        ["start", f"{statistics.median(starts):.0f}"],
        ["reset", f"{statistics.median(resets):.2f}"],
    ]


async def measure_sandboxes(times: int) -> list[list[str]]:
    """Milliseconds of the start of a sandbox, of a reset, and of the processor for one from its start to its end."""
    workspace = SandboxWorkspace(SandboxLimits())
    await workspace.initialize()  # what is made once is not counted
    await workspace.close()
    taken: dict[str, list[float]] = {"fresh": [], "reset": []}
    spent = count_cpu()
    for _ in range(times):
        for what, action in (("fresh", workspace.initialize), ("reset", workspace.reset)):
            began = time.perf_counter()
            await action()
            taken[what].append(1000 * (time.perf_counter() - began))
        await workspace.close()
    spent = count_cpu() - spent
    rows = [
        [what, f"{statistics.median(found):.1f}", f"{sorted(found)[len(found) * 9 // 10]:.1f}"]
        for what, found in taken.items()
    ]
    return [*rows, ["processor", f"{1000 * spent / times / 2:.1f}", ""]]


def count_cpu() -> float:
    """The processor's seconds of this process and of those that it started and that have ended."""
    of_both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in of_both)


async def measure_commands(side_by_side: int, commands: int) -> list[str]:
    """The row of so many sandboxes, each of which runs commands one after the other."""
    async with AsyncExitStack() as stack:
        boxes = [await stack.enter_async_context(Sandbox(SandboxLimits())) for _ in range(side_by_side)]
        began = time.perf_counter()
        taken = await asyncio.gather(*(time_calls(lambda box=box: box.run(["true"]), commands) for box in boxes))
        seconds = time.perf_counter() - began
    found = sorted(1000 * each for of_box in taken for each in of_box)
    p50, p99 = (found[int(part * len(found))] for part in (0.5, 0.99))
    return [str(side_by_side), f"{len(found) / seconds:,.0f}", f"{p50:.1f}", f"{p99:.1f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 64, 256])
    parser.add_argument("--calls", type=int, default=10, help="of each session")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--episodes", type=int, default=64, help="side by side, for the tokens per second; 0: none")
    parser.add_argument("--servers", type=int, default=8, help="most at a time where each session has its own")
    parser.add_argument("--sandboxes", type=int, default=40, help="started, and commands in each")
    known = parser.parse_args()
    console = Console()
    rows = [
        row for each in known.sessions for row in asyncio.run(measure(each, known.calls, known.rounds, known.servers))
    ]
    columns = ["sessions", "way", "calls/s", "of bare", "p50 ms", "of bare", "p99 ms"]
    console.print(table_of("Calls of a tool over standard input and output", columns, rows, left=2))
    if known.episodes:
        found = asyncio.run(measure_tokens(known.episodes, known.rounds))
        console.print(table_of(f"{known.episodes} episodes", ["servers", "tokens/s", "of shared"], found))
    console.print(table_of("A server of its own", ["what", "ms"], asyncio.run(measure_starts(known.rounds))))
    if shutil.which("bwrap") is None:
        console.print("no bubblewrap: nothing is said of sandboxes")
        return
    console.print(table_of("A sandbox", ["what", "p50 ms", "p90 ms"], asyncio.run(measure_sandboxes(known.sandboxes))))
    commands = [asyncio.run(measure_commands(each, known.sandboxes)) for each in (1, 32)]
    console.print(table_of("Commands in sandboxes", ["sandboxes", "commands/s", "p50 ms", "p99 ms"], commands))


if __name__ == "__main__":
    main()
