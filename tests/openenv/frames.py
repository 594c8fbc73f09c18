"""What the real OpenEnv server answers, in golden.json, and a server that answers the same.

`python -m tests.openenv.frames` asks the real one of `make test-openenv` and writes the file anew.
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from astune.support.http.serving import ServerThread, bound_socket, url_of
from astune.worlds.openenv_session import Session

HERE = Path(__file__).parent
GOLDEN = HERE / "golden.json"
PYTHON = HERE.parents[1] / ".venv-openenv" / "bin" / "python"
PLACES = 2

Frames = dict[str, Any]


def word(text: str) -> Frames:
    return {"type": "step", "data": {"word": text}}


def called(tool: str, **arguments: Any) -> Frames:
    return {"type": "step", "data": {"type": "call_tool", "tool_name": tool, "arguments": arguments}}


RESET = {"type": "reset", "data": {"seed": 5175329, "split": "train", "index": 1}}
LISTED = {"type": "mcp", "data": {"jsonrpc": "2.0", "method": "tools/list", "id": 1}}
SESSIONS: dict[str, list[list[Frames]]] = {
    "guess": [
        [RESET, word("lake"), word("ice")],
        [RESET, word(""), {"type": "step", "data": {"wort": "ice"}}, word("raise")],
        [{"type": "reset", "data": {"seed": 1, "split": "train", "index": 7}}],
    ],
    "tools": [
        [
            {"type": "reset", "data": {"seed": 564724612}},
            LISTED,
            called("add", a=3, b=4),
            called("add", a="x"),
            called("sub"),
        ],
    ],
}
"""By world, what is sent in a session."""
CALLS: list[tuple[str, str, Any]] = [
    ("GET", "/schema", None),
    ("GET", "/list_environments", None),
    ("GET", "/{}/splits", None),
    ("POST", "/{}/num_tasks", {"split": "train"}),
    ("POST", "/{}/num_tasks", {"split": "test"}),
    ("POST", "/{}/task", {"split": "train", "index": 1}),
]


async def record(url: str, world: str) -> Frames:
    """Ask a server all of it; also what it says where one session is too many."""
    with httpx.Client(base_url=url) as http:
        calls = []
        for method, path, body in CALLS:
            answer = http.request(method, path.format(world), json=body)
            calls.append([method, path.format(world), body, answer.status_code, without_links(answer.json())])
    sessions = []
    for sends in SESSIONS[world]:
        session = await Session.open(f"{url}/ws", {}, seconds=20)
        sessions.append([[sent, await answer_of(session, sent)] for sent in sends])
        await session.close()
    held = [await Session.open(f"{url}/ws", {}, seconds=20) for _ in range(PLACES + 1)]
    full = [await answer_of(each, {"type": "state"}) for each in held]
    for each in held:
        await each.close()
    return {"calls": calls, "sessions": sessions, "full": full[-1]}


async def answer_of(session: Session, sent: Frames) -> Frames:
    return without_links(await session.ask(sent, seconds=20))


def without_links(value: Any) -> Any:
    """The same without the addresses of explanations, which name pydantic's version."""
    if isinstance(value, dict):
        return {key: without_links(one) for key, one in value.items() if key != "url"}
    return [without_links(one) for one in value] if isinstance(value, list) else value


@contextmanager
def real_server(world: str, places: int = PLACES) -> Iterator[str]:
    """The address of the real server, while the block lasts."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([PYTHON, HERE / "worlds.py", world, str(places), str(port)])
    url = f"http://127.0.0.1:{port}"
    try:
        with httpx.Client(
            transport=httpx.HTTPTransport(retries=10)
        ) as http:  # half a second, and twice as long each time
            http.get(f"{url}/health", timeout=60.0)
        yield url
    finally:
        process.terminate()
        process.wait()


class Replay:
    """The server of a recording. `places`: sessions at a time; `speaks`: whether it says that there is none left."""

    def __init__(self, recording: Frames, places: int, speaks: bool) -> None:
        self.recording, self.places, self.speaks = recording, places, speaks
        self.live = 0
        self.headers: list[str | None] = []
        self.unexpected: list[Any] = []
        routes = [WebSocketRoute("/ws", self.talk), Route("/{path:path}", self.call, methods=["GET", "POST"])]
        self.app = Starlette(routes=routes)

    async def call(self, request: Request) -> Response:
        sent = await request.body()
        asked = [request.method, request.url.path, json.loads(sent) if sent else None]
        for *expected, status, answer in self.recording["calls"]:
            if asked == expected:
                return JSONResponse(answer, status)
        self.unexpected.append(asked)
        return JSONResponse({"detail": "Not Found"}, 404)

    async def talk(self, socket: WebSocket) -> None:
        await socket.accept()
        self.headers.append(socket.headers.get("authorization"))
        self.live += 1
        try:
            if self.live <= self.places:
                await self._play(socket)
            elif self.speaks:
                await socket.send_json(self.recording["full"])
        finally:
            self.live -= 1
        await socket.close()

    async def _play(self, socket: WebSocket) -> None:
        said: list[Frames] = []
        while (message := await socket.receive())["type"] != "websocket.disconnect":
            said.append(json.loads(message["text"]))
            if said[-1] == {"type": "close"}:
                return
            played = [
                session for session in self.recording["sessions"] if [sent for sent, _ in session[: len(said)]] == said
            ]
            if not played:
                self.unexpected.append(said)
                return
            await socket.send_json(played[0][len(said) - 1][1])


@contextmanager
def replayed(world: str, places: int = 8, speaks: bool = True) -> Iterator[tuple[str, Replay]]:
    """The address of a server that answers as the real one did. It has been asked nothing else in the end."""
    replay = Replay(json.loads(GOLDEN.read_text())[world], places, speaks)
    listener = bound_socket("127.0.0.1", 0)
    url = url_of("127.0.0.1", listener)
    config = uvicorn.Config(replay.app, ws="wsproto", lifespan="off", log_level="warning", loop="asyncio")
    server = ServerThread(config, listener, "replay")
    server.start()
    try:
        yield url, replay
    finally:
        server.close(at_once=True)
    assert replay.unexpected == []


def record_all() -> Frames:
    recordings = {}
    for world in SESSIONS:
        with real_server(world) as url:
            recordings[world] = asyncio.run(record(url, world))
    return recordings


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(record_all(), indent=1) + "\n")
