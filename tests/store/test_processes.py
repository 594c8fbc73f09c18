"""A name tells whether its process still lives, to others on the same machine alone."""

import os
import subprocess
import sys

import pytest

from astune.online.store.leases import has_ended, name_of
from tests.rows import each_row

WAITS = "import sys; sys.stdin.read()"


@pytest.fixture
def child():
    with subprocess.Popen([sys.executable, "-c", WAITS], stdin=subprocess.PIPE) as process:
        yield process


def test_a_process_that_was_killed_has_ended_even_before_its_parent_asks(child: subprocess.Popen[bytes]) -> None:
    name = name_of(child.pid)
    assert not has_ended(name) and not has_ended(name_of(os.getpid()))
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert has_ended(name)
    child.wait()
    assert has_ended(name)


def test_another_process_with_the_same_number_is_another(child: subprocess.Popen[bytes]) -> None:
    machine, _, process = name_of(child.pid).partition("/")
    pid, _, started = process.partition(":")
    assert has_ended(f"{machine}/{pid}:{int(started) - 1}")


@each_row("name", ["", "web-1", "web-1/7", "web-1:5e1f-1/7:99", "web-1:/7:", "a/b:c"])
def test_of_other_machines_and_names_nobody_can_tell(name: str) -> None:
    assert not has_ended(name)
