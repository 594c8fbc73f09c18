"""Join a Ray cluster or start one, and say at once where that cannot be. Unchecked, Ray waits for minutes and then ends
the process."""

from __future__ import annotations

import logging
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray

from astune.errors import ConfigError

LONGEST_KNOCK = 5.0
"""Seconds that a machine gets to accept a connection."""
LONGEST_GREETING = 20.0
"""Seconds that Ray gets to answer there. `ray.init` itself would wait for minutes and then end the process."""
START_RAY = "start one with `ray start --head` and join the others to it, or leave the key out for Ray on this machine"


def connect(
    address: str, namespace: str, variables: Mapping[str, str], key: str, resources: Mapping[str, int] | None = None
) -> Path:
    """Join the cluster at `address`, or start one of our own for "local", and give the folder of Ray's session on this
    machine. `variables` are the environment of Ray's processes, `key` is the one that names the address, `resources`
    are what a cluster of our own says it has. Raises `ConfigError` within `LONGEST_KNOCK + LONGEST_GREETING` seconds
    where no Ray answers."""
    if address != "local":
        check_address(address, key)
    own: dict[str, Any] = {"include_dashboard": False, **(resources or {})} if address == "local" else {}
    try:
        with own_signals():
            joined = ray.init(
                address=address,
                namespace=namespace,
                runtime_env={"env_vars": dict(variables)},
                log_to_driver=False,
                logging_level=logging.ERROR,
                **own,
            )
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise ConfigError(f"{key}: Ray does not start or join at {address!r}: {error}") from error
    return Path(joined.address_info["session_dir"])


@contextmanager
def own_signals() -> Iterator[None]:
    """SIGTERM goes on doing what it did: Ray takes it for itself, and a run would end unsaved."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


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
