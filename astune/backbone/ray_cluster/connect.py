"""Join a Ray cluster or start one, and say at once where that cannot be. Unchecked, Ray waits for minutes and then ends
the process."""

from __future__ import annotations

import logging
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import ray
from ray._private import services

from astune.errors import ConfigError, name_error

logger = logging.getLogger(__name__)

LONGEST_KNOCK = 5.0
"""Seconds that a machine gets to accept a connection."""
LONGEST_GREETING = 60.0
"""Seconds that Ray gets to answer there. `ray.init` itself would wait for minutes and then end the process."""
LONGEST_START = 120.0
"""Seconds that Ray's processes get to start on this machine."""
LISTEN_PORT = "dashboard_agent_listen_port"
AGENT_PORTS = ("metrics_agent_port", "metrics_export_port", "runtime_env_agent_port", LISTEN_PORT)
"""As Ray names the ports of a node's agents."""
LOGS = "the logs in /tmp/ray/session_latest/logs (or in the folder below RAY_TMPDIR)"
START_RAY = "start one with `ray start --head` and join the others to it, or leave the key out for Ray on this machine"


@contextmanager
def join_ray(
    address: str, namespace: str, variables: Mapping[str, str], key: str, resources: Mapping[str, int] | None = None
) -> Iterator[Path]:
    """Be connected as `connect` says while this is entered; a cluster of our own ends with it."""
    session = connect(address, namespace, variables, key, resources)
    try:
        yield session
    finally:
        ray.shutdown()


def connect(
    address: str, namespace: str, variables: Mapping[str, str], key: str, resources: Mapping[str, int] | None = None
) -> Path:
    """Join the cluster at `address`, or start one of our own for "local", and give the folder of Ray's session on this
    machine. `variables` are the environment of Ray's processes, which find what this process imports from its folder
    or from PYTHONPATH; `key` names the address, `resources` are what a cluster of our own says it has. Raises
    `ConfigError` within `LONGEST_KNOCK + LONGEST_GREETING` seconds where no Ray answers, and where Ray does not start
    or join in the time that it gives itself."""
    if address != "local":
        check_address(address, key)
    began = time.monotonic()
    search = os.pathsep.join(path for path in (os.getcwd(), os.environ.get("PYTHONPATH", "")) if path)
    own: dict[str, Any] = {"include_dashboard": False, **(resources or {})} if address == "local" else {}
    try:
        with own_signals(), patient_start():
            joined = ray.init(
                address=address,
                namespace=namespace,
                runtime_env={"env_vars": {**variables, "PYTHONPATH": search}},
                log_to_driver=False,
                logging_level=logging.ERROR,
                **own,
            )
    except Exception as error:  # Ray raises no narrower class where its processes do not start in time
        what = "Ray did not start on this machine" if address == "local" else f"Ray did not join at {address!r}"
        raise ConfigError(
            f"{key}: {what}, after {time.monotonic() - began:.0f} s. Its processes get {LONGEST_START:.0f} s, which is "
            f"short on a very busy machine: then try again. If not, {LOGS} say why, and `ray stop` ends what an "
            f"earlier Ray has left. Ray says: {name_error(error)}"
        ) from error
    session = Path(joined.address_info["session_dir"])
    logger.info("what the processes of Ray print is in %s of their nodes", session / "logs")
    return session


@contextmanager
def own_signals() -> Iterator[None]:
    """Keep the handler of SIGTERM: Ray puts its own there, and a run would end unsaved."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


@contextmanager
def patient_start() -> Iterator[None]:
    """Have Ray wait `LONGEST_START` for each of its processes. By itself it waits 15 or 30 seconds, which a busy
    machine exceeds, and for some it has no option: the node and, until they have said which ports they took, its
    agents, so that these are told which to take."""
    os.environ.setdefault("RAY_gcs_server_port_wait_time_s", f"{LONGEST_START:.0f}")
    os.environ.setdefault("RAY_agent_register_timeout_ms", f"{1000 * LONGEST_START:.0f}")
    ask, start, start_process = services.get_node, services.start_raylet, services.start_ray_process

    def wait_for_node(gcs_address: str, node_id: str) -> Any:
        until = time.monotonic() + LONGEST_START
        while True:
            try:
                return ask(gcs_address, node_id)
            except RuntimeError:  # it is not there yet
                if time.monotonic() > until:
                    raise
                time.sleep(0.2)

    def start_with_ports(*given: Any, **options: Any) -> Any:
        ports = dict(zip(AGENT_PORTS, _find_ports(len(AGENT_PORTS)), strict=True))

        def tell(command: list[str], process_type: str, *more: Any, **settings: Any) -> Any:
            if process_type == "raylet":  # Ray tells it the other ports by itself
                command = [*command, f"--{LISTEN_PORT}={ports[LISTEN_PORT]}"]
            return start_process(command, process_type, *more, **settings)

        services.start_ray_process = tell
        try:
            return start(*given, **options | ports)
        finally:
            services.start_ray_process = start_process

    services.get_node, services.start_raylet = wait_for_node, start_with_ports
    try:
        yield
    finally:
        services.get_node, services.start_raylet = ask, start


def _find_ports(number: int) -> list[int]:
    """Find so many different ones, of those that neither the system gives to connections nor Ray to its workers."""
    with ExitStack() as held:
        ports = list[int]()
        for port in random.Random().sample(range(20_000, 32_000), 1000):
            if len(ports) == number:
                break
            with suppress(OSError):
                held.enter_context(socket.create_server(("", port)))
                ports.append(port)
        return ports


def check_address(address: str, key: str) -> None:
    """Raises `ConfigError` where no Ray of this version answers at `address`: "auto" or `host:port`."""
    if address != "auto":
        host, colon, port = address.rpartition(":")
        if "://" in address or not colon or not port.isdigit():
            raise ConfigError(
                f"{key}: got {address!r}, expected 'local', 'auto' or 'host:port' of the cluster's head; the "
                "run is started on a machine of the cluster, so Ray's client (ray://) is of no use"
            )
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=LONGEST_KNOCK).close()
        except (OSError, OverflowError) as error:
            raise ConfigError(f"{key}: nothing answers at {address} ({error}); {START_RAY}") from error
    _greet(address, key)


def _greet(address: str, key: str) -> None:
    """Ask Ray's own health check, in a process of its own: Ray ends the process that cannot connect."""
    where = [] if address == "auto" else ["--address", address]
    command = [sys.executable, "-m", "ray.scripts.scripts", "health-check", *where]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_GREETING)
    except subprocess.TimeoutExpired:
        problem = f"no Ray answers there within {LONGEST_GREETING:.0f} s"
    else:
        if done.returncode == 0:
            return
        problem = (done.stderr.strip().splitlines() or [f"Ray's health check says {done.returncode}"])[-1]
    raise ConfigError(f"{key}: got {address!r}: {problem}; {START_RAY}")
