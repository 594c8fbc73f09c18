"""The servers that are attacked, each in a process of its own: `with Served("gateway") as served`.

As a script it is that process: it serves until its input ends, and says in the first line of its output where.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parents[2]
TINKER_PYTHON = ROOT / ".venv-trinity" / "bin" / "python"
"""The environment that has the tinker package."""
TOKEN = "tml-token-of-the-attack"


@dataclass(frozen=True)
class Request:
    """What is sent well before it is sent wrongly, and the status of its answer."""

    method: str
    path: str
    body: Any
    status: int
    headers: tuple[str, ...] = ()

    def bytes(self, host: str, body: bytes | None = None, *headers: str) -> bytes:
        """The request, with another body or further headers."""
        sent = json.dumps(self.body).encode() if body is None else body
        head = [f"{self.method} {self.path} HTTP/1.1", f"Host: {host}", "Content-Type: application/json"]
        head += [*self.headers, f"Content-Length: {len(sent)}", *headers]
        return "\r\n".join(head).encode() + b"\r\n\r\n" + sent


class Served:
    """A server process: where it is, a request that it answers well, and what it holds."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        python = str(TINKER_PYTHON) if kind == "tinker" else sys.executable
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            [python, __file__, kind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=environment,
        )
        assert self._process.stdout is not None
        told = self._process.stdout.readline()
        if not told:
            self._log.seek(0)
            raise RuntimeError(f"the {kind} server did not start: {self._log.read()[-2000:]}")
        said = json.loads(told)
        self.host, self.port, self.door = said["host"], said["port"], said.get("door")
        self.request = Request(**{**said["request"], "headers": tuple(said["request"]["headers"])})

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.communicate(timeout=10)
        self._process.kill()
        self._process.wait()
        self._log.close()

    @property
    def authority(self) -> str:
        return f"{self.host}:{self.port}"

    def open_files(self) -> int:
        return len(os.listdir(f"/proc/{self._process.pid}/fd"))

    def memory(self) -> float:
        """MiB of memory that the process holds."""
        pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def tracebacks(self) -> list[str]:
        """The last line of each traceback that the server has written."""
        self._log.seek(0)
        _, *traces = self._log.read().split("Traceback (most recent call last)")
        return [next(line for line in trace.splitlines()[1:] if line and not line.startswith(" ")) for trace in traces]


async def _gateway() -> None:
    """The endpoint for agents, and a door beside it: a session of its own for as long as a connection there is open.
    The door says the session's URL; told `end`, it says how many turns were recorded."""
    from astune.context_tracker.prompt.chat_format import ChatFormat
    from astune.context_tracker.tracker import ContextTracker
    from astune.testing import ScriptedPolicy, write_test_model_dir
    from astune.types import Sampling, Task
    from astune.workflow.tuner import Tuner

    with tempfile.TemporaryDirectory() as folder:
        chat_format = ChatFormat.load(write_test_model_dir(Path(folder)))
    numbers = itertools.count()

    class Slow(ScriptedPolicy):
        """Answers after a moment, so that calls are under way when clients go away."""

        async def generate(self, prompt_ids: Any, sampling: Sampling) -> Any:
            await asyncio.sleep(0.02)
            return await super().generate(prompt_ids, sampling)

    def new_session() -> tuple[Tuner, ContextTracker]:
        name = f"session {next(numbers)}"
        policy = Slow(lambda prompt: f"I am {name}.", chat_format, context_length=4096)
        tracker = ContextTracker(policy, chat_format, Sampling(max_tokens=64), max_turns=100, seed=1)
        return Tuner(Task("task", "?"), name, tracker), tracker

    async def door(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tuner, tracker = new_session()
        with contextlib.suppress(ConnectionError):
            writer.write(json.dumps([tuner.base_url(), tuner.episode_id]).encode() + b"\n")
            await reader.readline()
            writer.write(b"%d\n" % len(tracker.turns))
            await writer.drain()
        tuner.close()
        writer.close()

    first, _ = new_session()
    url = urlsplit(first.base_url())
    server = await asyncio.start_server(door, "127.0.0.1", 0, backlog=1024)
    body = {"messages": [{"role": "user", "content": "Hi"}]}
    said = {"method": "POST", "path": f"{url.path}/chat/completions", "body": body, "status": 200, "headers": []}
    _say(url.hostname, url.port, said, door=server.sockets[0].getsockname()[1])
    await asyncio.to_thread(sys.stdin.read)
    first.close()


def _environment() -> None:
    from astune.testing import EnvServer
    from astune.worlds.countdown import CountdownEnvironment

    with EnvServer([CountdownEnvironment()], token=TOKEN) as server:
        url = urlsplit(server.url)
        body = {"env_type": "countdown", "params": {"split": "train"}}
        headers = [f"Authorization: Bearer {TOKEN}"]
        said = {"method": "POST", "path": "/get_env_profile", "body": body, "status": 200, "headers": headers}
        _say(url.hostname, url.port, said)
        sys.stdin.read()


def _tinker() -> None:
    from astune.tinker_server.server import TinkerServerConfig, serve

    ended = threading.Event()

    def ready(address: str) -> None:
        url = urlsplit(address)
        body = {"session_id": "none", "base_model": "tiny", "model_seq_id": 0, "lora_config": {"rank": 8}}
        said = {"method": "POST", "path": "/api/v1/create_model", "body": body, "status": 404}
        _say(url.hostname, url.port, {**said, "headers": [f"X-API-Key: {TOKEN}"]})
        threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()

    with tempfile.TemporaryDirectory() as folder:
        serve(TinkerServerConfig("tiny", Path(folder), port=0, device="cpu", api_key=TOKEN), ready, ended.is_set)


def _say(host: str | None, port: int | None, request: dict[str, Any], **more: Any) -> None:
    print(json.dumps({"host": host, "port": port, "request": request, **more}), flush=True)


if __name__ == "__main__":
    kind = sys.argv[1]
    if kind == "gateway":
        asyncio.run(_gateway())
    elif kind == "environment":
        _environment()
    else:
        _tinker()
