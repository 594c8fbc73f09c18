"""A server as a child process that ends with its parent, however that ends.

The parent writes what to serve to the child's standard input, one line of JSON, and keeps it open; the child writes its
address to its standard output once it serves. Input that closes means: stop.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, AnyStr

from astune.support.resources import PACKAGE
from astune.support.visible import log_as_server

LAST_LINES = 20
"""Of a log, in an error."""


def start_child(module: str, given: Mapping[str, Any], stderr: int | IO[str]) -> subprocess.Popen[str]:
    """Start `python -m module`, which calls `read_from_parent`, in a session of its own: Ctrl-C is for the parent,
    which still needs the server to end its work."""
    process = subprocess.Popen(
        [sys.executable, "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        env=child_environment(),
        start_new_session=True,
    )
    with contextlib.suppress(BrokenPipeError):  # it ended at once: who waits for its address will hear of that
        pipe(process.stdin).write(json.dumps(given) + "\n")
        pipe(process.stdin).flush()
    return process


def child_environment() -> dict[str, str]:
    """The variables of a Python process that finds ASTune where this one does."""
    places = [str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))}


def stop_child(process: subprocess.Popen[str], seconds: float) -> None:
    """In the parent: end it, after what it does or after so many seconds. May be called twice."""
    with contextlib.suppress(BrokenPipeError):
        pipe(process.stdin).close()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    pipe(process.stdout).close()


def describe_end(what: str, process: subprocess.Popen[str], log: Path) -> str:
    """Tell that `what` happened, its exit code, and the last lines of its log."""
    lines = log.read_text(errors="replace").splitlines()[-LAST_LINES:] if log.exists() else []
    return "\n  ".join([f"{what} (exit code {process.returncode}); the end of {log}:", *lines])


def pipe(stream: IO[AnyStr] | None) -> IO[AnyStr]:
    """A stream that was asked for with `PIPE`."""
    assert stream is not None
    return stream


def read_from_parent(when_it_ends: Callable[[], None]) -> tuple[dict[str, Any], IO[str]]:
    """In the child: read what to serve, and make the stream that takes the address. All else that is printed goes to
    standard error. `when_it_ends` is called, in a thread, when the parent closes the child's input or has died."""
    log_as_server()
    address, sys.stdout = sys.stdout, sys.stderr
    given = json.loads(sys.stdin.readline())
    watch_parent(when_it_ends)
    return given, address


def watch_parent(when_it_ends: Callable[[], None]) -> None:
    """In the child: call `when_it_ends`, in a thread, when the parent closes the child's input or has died."""

    def watch() -> None:
        while os.read(sys.stdin.fileno(), 4096):  # not `sys.stdin`, whose lock would be held when the interpreter ends
            pass
        when_it_ends()

    threading.Thread(target=watch, daemon=True).start()


def end_child(seconds: float) -> None:
    """In the child: SIGTERM to itself, and after so many seconds the end, whatever goes on."""
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(seconds)
    os._exit(1)
