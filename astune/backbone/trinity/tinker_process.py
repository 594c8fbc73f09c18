"""The tinker server as a child process, which ends with its parent, however that ends.

The parent writes the configuration to the child's standard input and keeps it open; the child writes its address to
its standard output once it serves, and everything else to the log. Standard input that closes means: stop.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import secrets
import subprocess
import sys
from pathlib import Path
from typing import IO, Literal

import astune
from astune.errors import TrainingError

LAST_LINES = 20
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
            raise TrainingError(_told("the tinker server died", self.process, self.log))

    def stop(self) -> None:
        """Stop it, at once or after what it computes; it may be called twice."""
        with contextlib.suppress(BrokenPipeError):
            _pipe(self.process.stdin).close()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        _pipe(self.process.stdout).close()

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def start_server(
    model: Path,
    directory: Path,
    *,
    port: int = 0,
    device: str = "auto",
    dtype: Literal["auto", "float32", "bfloat16"] = "auto",
    slots: int = 64,
    training_temperature: float = 1.0,
    micro_batch_tokens: int | None = None,
    log: Path,
) -> ServerProcess:
    """Start a server on this machine and wait until it serves.

    Raises:
        TrainingError: it did not come up; with the last lines of the log.
    """
    api_key = f"tml-{secrets.token_urlsafe(24)}"  # the SDK sends no key that begins otherwise
    config = {
        "model": str(model),
        "directory": str(directory),
        "port": port,
        "device": device,
        "dtype": dtype,
        "slots": slots,
        "training_temperature": training_temperature,
        "micro_batch_tokens": micro_batch_tokens,
        "api_key": api_key,
    }
    places = [str(Path(astune.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))},
            start_new_session=True,  # Ctrl-C is for the parent, which has yet to save with this server's help
        )
    with contextlib.suppress(BrokenPipeError):
        pipe = _pipe(process.stdin)
        pipe.write(json.dumps(config) + "\n")
        pipe.flush()
    base_url = _pipe(process.stdout).readline().strip()
    server = ServerProcess(base_url, api_key, log, process)
    if not base_url:
        server.stop()
        raise TrainingError(_told("the tinker server did not come up", process, log))
    return server


def _pipe(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


def _told(what: str, process: subprocess.Popen[str], log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()[-LAST_LINES:]
    return "\n  ".join([f"{what} (exit code {process.returncode}); the end of {log}:", *lines])
