"""The roles as real processes: how they are started, started again, and ended. Light servers stand in their place."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest

from astune.cli.endings import BAD_INPUT, DONE

ROOT = Path(__file__).resolve().parents[2]
SERVES = ["env", "serve", "--env", "countdown", "--port", "0"]
ENDS = ["env", "list"]
WRONG = ["env", "serve", "--env"]
PARENT = """
import json, sys
from astune.online.roles import run_roles
from astune.support.signals import signals_as_ctrl_c

with signals_as_ctrl_c():
    sys.exit(run_roles(json.loads(sys.argv[1])))
"""
WAIT = 120.0


@contextmanager
def running(*commands: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A parent and its roles, which all have its output: that comes to its end when the last of them is gone."""
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT, json.dumps(commands)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=WAIT)


def urls(process: subprocess.Popen[str], number: int) -> list[str]:
    """Where so many servers serve, as soon as they do."""
    assert process.stdout is not None
    found: list[str] = []
    while len(found) < number:
        line = process.stdout.readline()
        assert line, f"it ended with {process.wait()}"
        found += re.findall(r"on (http://\S+)", line)
    return found


@pytest.mark.fault(
    "Online training", "`astune online`, which runs both roles, is killed (SIGKILL)", "its roles end with it"
)
def test_roles_end_with_a_parent_that_is_killed() -> None:
    with running(SERVES, SERVES) as process:
        for url in urls(process, 2):
            assert urlopen(f"{url}/health", timeout=WAIT).status == 200
        process.kill()
        rest, _ = process.communicate(timeout=WAIT)
        assert rest.count("stopped") == 2, "as by SIGTERM: what is under way may end"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_in_order(number: signal.Signals) -> None:
    with running(SERVES, SERVES) as process:
        urls(process, 2)
        process.send_signal(number)
        rest, _ = process.communicate(timeout=WAIT)
        assert process.returncode == DONE and rest.split() == ["stopping", "stopped", "stopped"]


def test_a_role_that_ends_is_started_again_after_a_wait_that_grows() -> None:
    with running(ENDS) as process:
        assert process.stdout is not None
        told: list[str] = []
        while len(told) < 2:
            line = process.stdout.readline()
            assert line
            told += [line.strip()] if "started again" in line else []
        assert told == [f"list ended with exit code 0; it is started again in {wait} s" for wait in ("0.5", "1")]


def test_a_role_that_was_called_wrongly_ends_all() -> None:
    with running(SERVES, WRONG) as process:
        said, _ = process.communicate(timeout=WAIT)
        assert process.returncode == BAD_INPUT and "--env" in said
