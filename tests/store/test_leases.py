"""A lease is taken over at once from a process of this machine that has ended, and from nobody else."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from astune.store import leases
from astune.store.database import Database
from astune.support.processes import name_of
from tests.store.databases import database as database
from tests.store.databases import url as url

ROOT = Path(__file__).resolve().parents[2]
NOW, SECONDS = 1000.0, 30.0
HOLDS = f"""
import os, sys
from astune.store import leases
from astune.store.database import open_database
from astune.support.processes import name_of

holder = name_of(os.getpid()) + "/train"
with open_database(sys.argv[1]).writing() as connection:
    assert leases.take(connection, "train", holder, {NOW}, {SECONDS})
print(holder, flush=True)
sys.stdin.read()
"""


def take(database: Database, holder: str, now: float = NOW) -> bool:
    with database.writing() as connection:
        return leases.take(connection, "train", holder, now, SECONDS)


def held_by(database: Database) -> str | None:
    with database.reading() as connection:
        return leases.held_by(connection, "train", NOW)


@pytest.mark.fault(
    "Online training",
    "the trainer is killed (SIGKILL) and another is started on the same machine",
    "it trains at once, without waiting for the lease to run out",
)
def test_who_was_killed_on_this_machine_is_followed_at_once(database: Database, url: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command, pipe = [sys.executable, "-c", HOLDS, url], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment) as child:
        assert child.stdout is not None
        holder = child.stdout.readline().strip()
        other = f"{name_of(os.getpid())}/other"
        assert held_by(database) == holder and not take(database, other)
        child.kill()
        child.wait()
        assert held_by(database) is None and take(database, other) and held_by(database) == other


def test_of_another_machine_nobody_can_tell_so_its_lease_must_run_out(database: Database) -> None:
    elsewhere, here = "web-1:5e1f-4026531836/7:99/train", f"{name_of(os.getpid())}/train"
    assert take(database, elsewhere) and not take(database, here)
    assert held_by(database) == elsewhere
    assert take(database, here, NOW + SECONDS)
