"""What recording costs a chat call: `astune online serve` beside the endpoint that training runs have.

    python benchmarks/online_serving.py
    python benchmarks/online_serving.py --concurrency 1 64 --calls 3000
    python benchmarks/online_serving.py --store postgresql+psycopg://user@host/name

Two servers, each in a process of its own, take turns, with the client of `gateway.py`:

    gateway   the endpoint of ASTune before a context tracker, which keeps its turns in memory
    online    the service before such trackers, each answer committed to the database before it is given

Both answer from one script, so that what is measured stands around the model; then both with the model that ships, 16
tokens an answer, which is what a call takes in reality. Every call to the service begins a conversation of its own.

"over gateway" is the median over rounds of the difference to the gateway in the same round. A call is lost if it has no
answer with status 200, or if there is no turn of it: in the tracker, or in the database.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import gateway
import sqlalchemy as sa
from gateway import BODY, Connection, Server, measure, show
from rich.console import Console
from starlette.types import ASGIApp

from astune.config.schema import Config
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.context_tracker.tracker import ContextTracker
from astune.gateway.server import HttpServer
from astune.online.service.serving import Model, OnlineService
from astune.online.store.versions import AS_CONFIGURED
from astune.store import open_database
from astune.store.tables import turns
from astune.support.resources import tiny_model_dir
from astune.testing import ScriptedPolicy
from astune.types import Policy, Sampling, Task
from astune.workflow.tuner import Tuner

SERVERS = ("gateway", "online")
ENGINES = ("script", "tiny")
TOKENS = 16
"""Most of an answer of the model that ships."""


# -- the servers, each in a process of its own --------------------------------------------------------------------


def policy_of(engine: str) -> tuple[Policy, ChatFormat]:
    """The script of `gateway.py`, or the model that ships."""
    if engine == "script":
        chat_format = ChatFormat.load(tiny_model_dir())
        return ScriptedPolicy(lambda prompt: gateway.ANSWER, chat_format), chat_format
    from astune.backbone.local.engine import load_engine

    loaded = load_engine(Config().astune)
    return loaded.policy, loaded.chat_format


def serve_gateway(policy: Policy, chat_format: ChatFormat, sessions: int) -> tuple[list[str], Callable[[], int]]:
    trackers, urls = [], []
    for session in range(sessions):
        tracker = ContextTracker(policy, chat_format, Sampling(max_tokens=TOKENS), max_turns=10**9, seed=session)
        tuner = Tuner(Task("task", "?"), f"benchmark/{session}", tracker)
        trackers.append(tracker)
        urls.append(tuner.base_url())
    return urls, lambda: sum(len(tracker.turns) for tracker in trackers)


def serve_online(
    policy: Policy, chat_format: ChatFormat, sessions: int, store: str
) -> tuple[list[str], Callable[[], int]]:
    config = Config.model_validate({"astune": {"rollout": {"max_tokens": TOKENS}, "online": {"store": store}}})
    service = OnlineService(config, Model("policy", chat_format, lambda version: policy, AS_CONFIGURED))
    server = HttpServer(_App(service.app.asgi))

    def recorded() -> int:
        service.close()
        with open_database(store).reading() as connection:
            return connection.scalar(sa.select(sa.func.count()).select_from(turns)) or 0

    return [f"{server.origin}/v1"] * sessions, recorded


class _App:
    """What `HttpServer` takes."""

    def __init__(self, asgi: ASGIApp) -> None:
        self.asgi = asgi


async def serve(name: str, engine: str, sessions: int, store: str) -> None:
    """Print the URLs, serve until the input ends, print how many turns were recorded."""
    policy, chat_format = policy_of(engine)
    if name == "gateway":
        urls, recorded = serve_gateway(policy, chat_format, sessions)
    else:
        urls, recorded = serve_online(policy, chat_format, sessions, store)
    print(json.dumps(urls), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    print(recorded(), flush=True)


# -- the client ---------------------------------------------------------------------------------------------------

_names = itertools.count()


class Talk(Connection):
    """A connection whose every call begins a conversation, and samples."""

    async def call(self) -> tuple[bool, float]:
        head, _, _ = self._request.partition(b"Content-Length:")
        plain = b"\r\n".join(line for line in head.split(b"\r\n") if not line.startswith(b"X-ASTune"))
        name = b"X-ASTune-Conversation: benchmark-%d\r\n" % next(_names)
        self._request = b"%s%sContent-Length: %d\r\n\r\n%s" % (plain, name, len(BODY), BODY)
        return await super().call()


async def main(options: argparse.Namespace) -> None:
    console = Console(width=120)
    for engine in ENGINES:
        with tempfile.TemporaryDirectory() as folder:
            store = options.store or f"sqlite:///{Path(folder) / 'online.db'}"
            more = ("--engine", engine, "--store", store)
            servers = [Server(name, max(options.concurrency), *more, script=__file__) for name in SERVERS]
            found = {n: await measure(servers, n, options, Talk) for n in options.concurrency}
            for way, title in enumerate(("saturated", f"at {options.rate:g} calls/s")):
                figures = {n: {name: each[way] for name, each in by.items()} for n, by in found.items()}
                show(console, f"{engine}, {title}", "gateway", figures)
            for server in servers:
                console.print(f"{server.name}: {server.sent:,} calls answered, {server.close()} of them not recorded")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 16, 64], help="open sessions")
    parser.add_argument("--calls", type=int, default=1000, help="calls per server, round and way")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", type=float, default=40.0, help="calls per second of the second way")
    parser.add_argument("--seconds", type=float, default=10.0, help="at most so long per server and round at that rate")
    parser.add_argument("--store", default="", help="an empty database; without it SQLite in a temporary folder")
    parser.add_argument("--serve", choices=SERVERS, help=argparse.SUPPRESS)
    parser.add_argument("--engine", choices=ENGINES, help=argparse.SUPPRESS)
    parser.add_argument("--sessions", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        asyncio.run(serve(given.serve, given.engine, given.sessions, given.store))
    else:
        asyncio.run(main(given))
