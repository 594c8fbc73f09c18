"""Runs that a test has started as processes of their own."""

import contextlib
import subprocess
import time
from collections.abc import Callable

import psutil
import pytest


def wait_for(process: subprocess.Popen[str], condition: Callable[[], bool], seconds: float) -> None:
    """Until the condition holds. The test fails, with what the run has printed, where it ends before or is late."""
    until = time.monotonic() + seconds
    while not condition():
        if process.poll() is not None or time.monotonic() > until:
            process.kill()
            pytest.fail(f"the run did not come so far: {process.communicate()[0]}")
        time.sleep(0.1)


def actor_of(parent: psutil.Process, title: str) -> psutil.Process:
    """The one process below another that calls itself so; those that end meanwhile are none."""
    found = []
    for child in parent.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            found += [child] if " ".join(child.cmdline()).startswith(title) else []
    (actor,) = found
    return actor
