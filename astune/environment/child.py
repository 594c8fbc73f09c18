"""The environment service that a run starts for itself: the process that `astune.clients.own_env_service` runs."""

from __future__ import annotations

import sys
from functools import partial

from astune.environment.registry import load_environment
from astune.environment.server import make_app, run_server
from astune.errors import AstuneError
from astune.support.http.child_server import end_child, read_from_parent
from astune.support.visible import tell

STOP_SECONDS = 10.0
"""An environment may not end."""
TTL = 24 * 3600.0
"""Seconds that an instance may be left alone: someone may be looking around in a debugger."""


def main() -> int:
    """Serve what standard input says, and write the address to standard output."""
    given, address = read_from_parent(partial(end_child, STOP_SECONDS))
    try:
        environment = load_environment(given["spec"], given["options"])
        app = make_app([environment], ttl=TTL, token=given["token"])
        run_server(app, "127.0.0.1", 0, lambda url: tell(url, file=address, flush=True))
    except AstuneError as error:
        tell(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
