"""The server as a child process of whoever writes its configuration to standard input; it ends when that closes."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

from astune.errors import AstuneError
from astune.support.visible import tell
from astune.tinker_server.server import TinkerServerConfig, serve


def main() -> int:
    """Serve what standard input says, and write the address to standard output."""
    told, sys.stdout = sys.stdout, sys.stderr  # nothing but the address goes to the parent
    given = json.loads(sys.stdin.readline())
    config = TinkerServerConfig(**given | {"directory": Path(given["directory"])})
    orphaned = threading.Event()

    def watch() -> None:
        sys.stdin.read()
        orphaned.set()

    threading.Thread(target=watch, daemon=True).start()
    try:
        serve(config, lambda address: tell(address, file=told, flush=True), orphaned.is_set)
    except AstuneError as error:
        tell(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
