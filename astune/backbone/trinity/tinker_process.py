"""The tinker server as a child process of a run (`astune.support.http.child_server`); all it says goes to the log."""

from __future__ import annotations

import dataclasses
import secrets
import subprocess
from pathlib import Path
from typing import Any

from astune.errors import TrainingError
from astune.support.http.child_server import describe_end, pipe, start_child, stop_child

STOP_SECONDS = 10.0
CHILD = "astune.tinker_server.child"
"""The module that the child runs: it takes the fields of its `TinkerServerConfig` as JSON."""


@dataclasses.dataclass
class ServerProcess:
    """A server that runs. `with start_server(...) as server:` stops it at the end."""

    base_url: str
    api_key: str
    log: Path
    process: subprocess.Popen[str]

    def check(self) -> None:
        """Raises `TrainingError`, with the last lines of the log, if the server has died."""
        if self.process.poll() is not None:
            raise TrainingError(describe_end("the tinker server died", self.process, self.log))

    def stop(self) -> None:
        """Stop it, at once or after what it computes; it may be called twice."""
        stop_child(self.process, STOP_SECONDS)

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def start_server(model: Path, directory: Path, *, log: Path, **settings: Any) -> ServerProcess:
    """Start a server on this machine and wait until it serves. `settings` are those fields of its `TinkerServerConfig`
    that are not to have their defaults; the port is any that is free.

    Raises:
        TrainingError: it did not come up; with the last lines of the log.
    """
    api_key = f"tml-{secrets.token_urlsafe(24)}"  # the SDK sends no key that begins otherwise
    config = {"model": str(model), "directory": str(directory), "port": 0, "api_key": api_key, **settings}
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as errors:
        process = start_child(CHILD, config, stderr=errors)
    base_url = pipe(process.stdout).readline().strip()
    server = ServerProcess(base_url, api_key, log, process)
    if not base_url:
        server.stop()
        raise TrainingError(describe_end("the tinker server did not come up", process, log))
    return server
