"""A server as a process of the run. It is asked over a socket in a folder that only this user can read."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

from astune.backbone.vllm.settings import ServerSettings
from astune.errors import TrainingError
from astune.support.child_server import pipe, start_child, stop_child, told_of_end

CHILD = "astune.backbone.vllm.child"
EVERY = 0.5
"""Seconds between two looks at it."""
STOP_SECONDS = 20.0
EMPTIED_SECONDS = 60.0
"""Within it answers that nobody waits for any more have ended."""
ADDRESS = "http://vllm"


class VllmServer:
    """A server that answers from when it is made until `close`. Raises TrainingError where it does not come up."""

    def __init__(self, settings: ServerSettings) -> None:
        self._kept = tempfile.TemporaryDirectory(prefix="astune-vllm-")
        self.folder = Path(self._kept.name)
        """Where files for the server may stand."""
        self._socket, self._log = self.folder / "socket", self.folder / "log"
        command = [*settings.command, "--uds", str(self._socket)]
        with self._log.open("w") as log:
            self._process = start_child(CHILD, {"command": command, "environment": settings.environment}, log)
        self._pid = pipe(self._process.stdout).readline().strip()
        """Of the server, which leads a group of processes; "" if it did not begin."""
        self._blocking = httpx.Client(
            transport=httpx.HTTPTransport(uds=str(self._socket)), base_url=ADDRESS, timeout=None
        )
        self._closed = False
        try:
            self._wait_until_up()
        except BaseException:
            self.close()
            raise

    def _wait_until_up(self) -> None:
        while True:
            if self._process.poll() is not None:
                raise self._dead("vLLM did not come up")
            with contextlib.suppress(OSError, httpx.TransportError):
                with socket.socket(socket.AF_UNIX) as tried:  # httpx leaves one behind that is refused
                    tried.connect(str(self._socket))
                if self._blocking.get("/health", timeout=10.0).status_code == 200:
                    return
            time.sleep(EVERY)

    def requests(self) -> httpx.AsyncClient:
        """What asks it on an event loop. No connection is kept: none is left behind by calls that are cut off."""
        transport = httpx.AsyncHTTPTransport(
            uds=str(self._socket), limits=httpx.Limits(max_connections=None, max_keepalive_connections=0)
        )
        return httpx.AsyncClient(transport=transport, base_url=ADDRESS, timeout=None)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def post(self, path: str, body: Mapping[str, Any] | None = None, **parameters: str) -> Any:
        """Ask, and wait: for all but answers to agents. Raises TrainingError where it says no or is gone."""
        try:
            reply = self._blocking.post(path, json=body, params=parameters)
        except httpx.TransportError as error:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_SECONDS)
            if not self.alive:
                raise self._dead("the vLLM server died") from error
            raise TrainingError(f"the vLLM server did not answer {path}: {error}") from error
        if reply.status_code != 200:
            raise TrainingError(f"the vLLM server refused {path}: {reply.status_code} {reply.text[:2000]}")
        return reply.json() if reply.headers.get("content-type", "").startswith("application/json") else reply.text

    def forget(self) -> None:
        """Empty its cache of prompts, once answers that nobody waits for have ended."""
        until = time.monotonic() + EMPTIED_SECONDS
        while not self.post("/reset_prefix_cache")["success"]:
            if time.monotonic() > until:
                raise TrainingError(f"the vLLM server still computes answers {EMPTIED_SECONDS:g} s after the last call")
            time.sleep(0.05)

    async def lost(self) -> TrainingError:
        """Wait until it is dead; the error that says why."""
        while self.alive:
            await asyncio.sleep(EVERY)
        return self._dead("the vLLM server died")

    def _dead(self, what: str) -> TrainingError:
        return TrainingError(told_of_end(what, self._process, self._log))

    def close(self) -> None:
        """End it and all its processes; may be called twice."""
        if self._closed:
            return
        self._closed = True
        self._blocking.close()
        stop_child(self._process, STOP_SECONDS)
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(int(self._pid), signal.SIGKILL)
        self._kept.cleanup()
