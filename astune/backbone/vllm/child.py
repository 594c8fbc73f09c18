"""`python -m astune.backbone.vllm.child`: runs a server, and ends all its processes when the run closes this one's
input or has died (`astune.support.http.child_server`)."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading

from astune.support.http.child_server import read_from_parent

STOP_SECONDS = 10.0


def main() -> int:
    over = threading.Event()
    given, told = read_from_parent(over.set)
    server = subprocess.Popen(
        given["command"],
        env={**os.environ, **given["environment"]},
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        start_new_session=True,
    )
    print(server.pid, file=told, flush=True)  # if this process is killed, the run ends the server itself
    ended = threading.Event()

    def wait() -> None:
        server.wait()
        ended.set()
        over.set()

    threading.Thread(target=wait, daemon=True).start()
    over.wait()
    if not ended.is_set():
        server.terminate()
        ended.wait(STOP_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)  # its engine's processes may outlive it
    return server.wait() % 256


if __name__ == "__main__":
    sys.exit(main())
