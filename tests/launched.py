"""Runs that a test has started as processes of their own."""

import subprocess
import time
from collections.abc import Callable

import pytest


def wait_for(process: subprocess.Popen[str], condition: Callable[[], bool], seconds: float) -> None:
    """Until the condition holds. The test fails, with what the run has printed, where it ends before or is late."""
    until = time.monotonic() + seconds
    while not condition():
        if process.poll() is not None or time.monotonic() > until:
            process.kill()
            pytest.fail(f"the run did not come so far: {process.communicate()[0]}")
        time.sleep(0.1)
