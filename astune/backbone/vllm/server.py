"""A vLLM server as the engine sees it: one that a run starts, or one that runs already."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx

from astune.backbone.vllm.settings import EXTENSION, Served, ServerSettings
from astune.errors import ConfigError, TrainingError
from astune.support.http.child_server import LAST_LINES, pipe, start_child, stop_child
from astune.support.run_log import log_path

CHILD = "astune.backbone.vllm.child"
ADDRESS = "astune.rollout.vllm.base_url"
EVERY = 0.5
"""Seconds between two looks at it."""
STOP_SECONDS = 20.0
LOST_AFTER = 15.0
"""Seconds without an answer after which a server that the run did not start counts as lost."""
EMPTIED_SECONDS = 60.0
"""Within it answers that nobody waits for any more have ended."""
ERROR_LINE = re.compile(r"\b(\w+(?:Error|Exception|Interrupt): .*)$")


class VllmServer(ABC):
    """Asked over HTTP from when it is made until `close`. `folder` is where files for it may stand; `uds` is the path
    of its socket, None where `base_url` is an address."""

    name = "the vLLM server"
    outlives = False
    """True for a server that was there before the run, and stays when the run ends."""

    def __init__(self, folder: Path, base_url: str, uds: Path | None = None) -> None:
        self.folder = folder
        self._base_url, self._uds = base_url, None if uds is None else str(uds)
        self._blocking = httpx.Client(
            transport=httpx.HTTPTransport(uds=self._uds, limits=httpx.Limits(max_keepalive_connections=0)),
            base_url=base_url,
            timeout=None,
        )

    @property
    @abstractmethod
    def alive(self) -> bool: ...

    @abstractmethod
    async def wait_until_lost(self) -> TrainingError:
        """Wait until it is dead; the error that says why."""

    @abstractmethod
    def close(self) -> None:
        """May be called twice."""

    def requests(self) -> httpx.AsyncClient:
        """Make a client for an event loop. No connection is kept: none is left behind by calls that are cut off."""
        transport = httpx.AsyncHTTPTransport(
            uds=self._uds, limits=httpx.Limits(max_connections=None, max_keepalive_connections=0)
        )
        return httpx.AsyncClient(transport=transport, base_url=self._base_url, timeout=None)

    def post(self, path: str, body: Mapping[str, Any] | None = None, **parameters: str) -> Any:
        """Ask, and wait: for all but answers to agents. Raises TrainingError where it says no or is gone."""
        try:
            reply = self._blocking.post(path, json=body, params=parameters)
        except httpx.TransportError as error:
            raise self._no_answer(path, error) from error
        if reply.status_code != 200:
            raise TrainingError(f"{self.name} refused {path}: {reply.status_code} {reply.text[:2000]}")
        return reply.json() if reply.headers.get("content-type", "").startswith("application/json") else reply.text

    def _no_answer(self, path: str, error: httpx.TransportError) -> TrainingError:
        return TrainingError(f"{self.name} did not answer {path}: {error}")

    def forget(self) -> None:
        """Empty its cache of prompts, once answers that nobody waits for have ended."""
        until = time.monotonic() + EMPTIED_SECONDS
        while not self.post("/reset_prefix_cache")["success"]:
            if time.monotonic() > until:
                raise TrainingError(f"{self.name} still computes answers {EMPTIED_SECONDS:g} s after the last call")
            time.sleep(0.05)


class OwnServer(VllmServer):
    """A process of the run, asked over a socket in a folder that only this user can read. Raises TrainingError where
    it does not come up."""

    def __init__(self, settings: ServerSettings) -> None:
        self._kept = tempfile.TemporaryDirectory(prefix="astune-vllm-")
        folder = Path(self._kept.name)
        self._socket, self._log = folder / "socket", folder / "log"
        super().__init__(folder, "http://vllm", self._socket)
        command = [*settings.command, "--uds", str(self._socket)]
        with self._log.open("w") as log:
            self._process = start_child(CHILD, {"command": command, "environment": settings.environment}, log)
        self._pid = pipe(self._process.stdout).readline().strip()
        """Id of the server, which leads a group of processes; "" if it did not begin."""
        self._closed = False
        try:
            self._wait_until_up()
        except BaseException:
            self.close()
            raise

    def _wait_until_up(self) -> None:
        while True:
            if not self.alive:
                raise self._report_death("vLLM did not come up")
            with contextlib.suppress(OSError, httpx.TransportError):
                with socket.socket(socket.AF_UNIX) as tried:  # httpx leaves one behind that is refused
                    tried.connect(str(self._socket))
                if self._blocking.get("/health", timeout=10.0).status_code == 200:
                    return
            time.sleep(EVERY)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def _no_answer(self, path: str, error: httpx.TransportError) -> TrainingError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_SECONDS)
        return super()._no_answer(path, error) if self.alive else self._report_death("the vLLM server died")

    async def wait_until_lost(self) -> TrainingError:
        while self.alive:
            await asyncio.sleep(EVERY)
        return self._report_death("the vLLM server died")

    def _report_death(self, what: str) -> TrainingError:
        """Its log stays behind: it is long, and ends with what a dying process says of others."""
        log = Path(tempfile.gettempdir()) / f"{self.folder.name}.log"
        shutil.copyfile(self._log, log)
        lines = log.read_text(errors="replace").splitlines()
        errors = dict.fromkeys(found[1] for line in lines if (found := ERROR_LINE.search(line)))
        told = [*errors][:LAST_LINES] or lines[-LAST_LINES:]
        return TrainingError("\n  ".join([f"{what} (exit code {self._process.returncode}); of its log, {log}:", *told]))

    def close(self) -> None:
        """End it and all its processes."""
        if self._closed:
            return
        self._closed = True
        self._blocking.close()
        stop_child(self._process, STOP_SECONDS)
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(int(self._pid), signal.SIGKILL)
        if (path := log_path("vllm")) is not None:
            with contextlib.suppress(OSError):
                path.parent.mkdir(exist_ok=True)
                shutil.copyfile(self._log, path)
        self._kept.cleanup()


class NamedServer(VllmServer):
    """A server that others started and that outlives the run, at `base_url` (its OpenAI-compatible API, with or without
    /v1). Files for it stand in a folder of its own below `shared`, which it has to see at the same place."""

    outlives = True

    def __init__(self, base_url: str, shared: Path) -> None:
        shared.mkdir(parents=True, exist_ok=True)
        self._kept = tempfile.TemporaryDirectory(prefix=".vllm-", dir=shared)
        os.chmod(self._kept.name, 0o755)  # the server may be another user's
        self.name = f"the vLLM server at {base_url}"
        self._gone = False
        super().__init__(Path(self._kept.name).resolve(), base_url.rstrip("/").removesuffix("/v1"))

    @property
    def alive(self) -> bool:
        return not self._gone

    def get(self, path: str, **parameters: str) -> Any:
        """Read a page about the server, None where it has no such page. Raises TrainingError where it does not
        answer."""
        try:
            reply = self._blocking.get(path, params=parameters, timeout=60.0)
        except httpx.TransportError as error:
            raise self._no_answer(path, error) from error
        return reply.json() if reply.status_code == 200 else None

    async def wait_until_lost(self) -> TrainingError:
        answered = time.monotonic()
        async with self.requests() as asking:
            while time.monotonic() - answered < LOST_AFTER:
                with contextlib.suppress(httpx.TransportError):
                    if (await asking.get("/health", timeout=LOST_AFTER)).status_code == 200:
                        answered = time.monotonic()
                await asyncio.sleep(EVERY)
        self._gone = True
        return TrainingError(f"{self.name} has not answered for {LOST_AFTER:g} s")

    def close(self) -> None:
        self._blocking.close()
        self._kept.cleanup()


def check_server(server: NamedServer, served: Served) -> str:
    """Check a server, and give its name for the model. Raises ConfigError with all that is amiss, and the command that
    starts a right one."""
    try:
        info = server.get("/server_info", config_format="json")
        if info is None:
            wrong = ["it has no /server_info: VLLM_SERVER_DEV_MODE is not set, or it is no vLLM of 0.32 or later"]
            raise _refuse(server, served, wrong)
        wrong = list(_find_faults(info, served))
        name = info["vllm_config"]["model_config"]["served_model_name"]
        name = name if isinstance(name, str) else name[0]
        if not wrong:
            try:
                parameters = {"max_tokens": 1, "logprobs": 0}
                server.post("/inference/v1/generate", {"model": name, "token_ids": [0], "sampling_params": parameters})
            except TrainingError as error:
                wrong = [f"it does not answer to token ids, which takes --enable-scale-out ({error})"]
    except TrainingError as error:
        raise _refuse(server, served, [str(error)]) from error
    if wrong:
        raise _refuse(server, served, wrong)
    return str(name)


def _find_faults(info: Mapping[str, Any], served: Served) -> Iterator[str]:
    config = info["vllm_config"]
    model, lora = config["model_config"], config["lora_config"]
    if model["logprobs_mode"] != served.logprobs:
        yield f"--logprobs-mode is {model['logprobs_mode']!r}, expected {served.logprobs!r}"
    if model["generation_config"] != "vllm":
        yield f"--generation-config is {model['generation_config']!r}, expected 'vllm'"
    if model["max_model_len"] < served.context_length:
        yield f"--max-model-len is {model['max_model_len']}, expected {served.context_length} or more"
    if model["dtype"] not in (served.dtype, f"torch.{served.dtype}"):
        yield f"--dtype is {model['dtype']!r}, expected {served.dtype!r}"
    if served.rank is None:
        if config["parallel_config"]["worker_extension_cls"] != EXTENSION:
            yield f"--worker-extension-cls is not {EXTENSION!r}, so it cannot be given weights"
        return
    if lora is None or lora["max_lora_rank"] < served.rank:
        yield f"--max-lora-rank is {lora and lora['max_lora_rank']}, expected {served.rank} or more"
    if not info["vllm_env"].get("VLLM_ALLOW_RUNTIME_LORA_UPDATING"):
        yield "VLLM_ALLOW_RUNTIME_LORA_UPDATING is not set, so it cannot be given adapters"


def _refuse(server: NamedServer, served: Served, wrong: list[str]) -> ConfigError:
    told = "\n  - ".join([f"{ADDRESS}: {server.name} is not what this run needs:", *wrong])
    return ConfigError(f"{told}\nStart it with:\n  {served.show_command()}")
