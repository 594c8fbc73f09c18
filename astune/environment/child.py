"""The environment service that a run starts for itself: the process that `astune.clients.own_env_service` runs."""

from __future__ import annotations

import os
import signal
import sys
import threading

from astune.environment.registry import load_environment
from astune.environment.server import make_app, run_server
from astune.errors import AstuneError
from astune.support.child_server import given_by_parent
from astune.support.visible import tell

STOP_SECONDS = 10.0
TTL = 24 * 3600.0
"""Seconds that an instance may be left alone: someone may be looking around in a debugger."""


def main() -> int:
    """Serve what standard input says, and write the address to standard output."""
    given, address = given_by_parent(_end)
    try:
        environment = load_environment(given["spec"], given["options"])
        app = make_app([environment], ttl=TTL, token=given["token"])
        run_server(app, "127.0.0.1", 0, lambda url: tell(url, file=address, flush=True))
    except AstuneError as error:
        tell(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


def _end() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(STOP_SECONDS)
    os._exit(1)  # an environment does not end


if __name__ == "__main__":
    sys.exit(main())
