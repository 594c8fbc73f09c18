"""The `astune` command as the child of another process: it ends when its input closes, as by SIGTERM."""

from __future__ import annotations

from functools import partial

from astune.cli import entry
from astune.support.http.child_server import end_child, watch_parent

STOP_SECONDS = 30.0
"""For requests that are under way."""

if __name__ == "__main__":
    watch_parent(partial(end_child, STOP_SECONDS))
    entry()
