"""The server as a child process of whoever writes its configuration to standard input; it ends when that closes."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from astune.errors import AstuneError
from astune.support.http.child_server import read_from_parent
from astune.support.visible import tell
from astune.tinker_server.server import TinkerServerConfig, serve


def main() -> int:
    """Serve what standard input says, and write the address to standard output."""
    orphaned = threading.Event()
    given, address = read_from_parent(orphaned.set)
    config = TinkerServerConfig(**given | {"directory": Path(given["directory"])})
    try:
        serve(config, lambda url: tell(url, file=address, flush=True), orphaned.is_set)
    except AstuneError as error:
        tell(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
