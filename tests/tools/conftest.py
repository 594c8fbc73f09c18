"""Servers of tests/tools/notes_server.py, over each transport."""

import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from astune.config.tools import ToolsConfig
from astune.support.http.serving import bound_socket
from astune.tools import ToolServers
from astune.types import Task

SERVER = Path(__file__).with_name("notes_server.py")
TASK = Task("t1", "What did I note?", metadata={"first": "milk"})


def notes(**options):
    return {"notes": {"command": ["python", str(SERVER)], "time_limit": 20, **options}}


def servers_of(servers, **on_failure):
    return ToolServers(ToolsConfig.model_validate({"servers": servers, "on_failure": on_failure}))


@pytest.fixture
def serve():
    """`with serve("http") as address` runs a server of that transport."""

    @contextmanager
    def run(kind):
        with bound_socket("127.0.0.1", 0) as held:  # so that nobody else is given the port until the server has it
            port = held.getsockname()[1]
            process = subprocess.Popen([sys.executable, str(SERVER), kind, str(port)], stderr=subprocess.DEVNULL)
            try:
                path = {"http": "mcp", "sse": "sse"}[kind]
                while True:
                    try:
                        httpx.post(f"http://127.0.0.1:{port}/nothing", timeout=60.0)
                        break
                    except httpx.ConnectError:
                        assert process.poll() is None
                yield f"http://127.0.0.1:{port}/{path}"
            finally:
                process.kill()
                process.wait()

    return run
