"""A lease is taken over at once from a process of this machine that has ended, and from nobody else."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from astune.online.store import leases
from astune.online.store.leases import name_of
from astune.store.database import Database
from tests.store.databases import database as database
from tests.store.databases import url as url

ROOT = Path(__file__).resolve().parents[2]
NOW, SECONDS = 1000.0, 30.0
HOLDS = f"""
import os, sys
from astune.online.store import leases
from astune.store.database import open_database
from astune.online.store.leases import name_of

holder = name_of(os.getpid()) + "/train"
with open_database(sys.argv[1]).writing() as connection:
    assert leases.take(connection, "train", holder, {NOW}, {SECONDS})
print(holder, flush=True)
sys.stdin.read()
"""


def take(database: Database, holder: str, now: float = NOW) -> bool:
    with database.writing() as connection:
        return leases.take(connection, "train", holder, now, SECONDS)


def find_holder(database: Database) -> str | None:
    with database.reading() as connection:
        return leases.find_holder(connection, "train", NOW)


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
        assert find_holder(database) == holder and not take(database, other)
        child.kill()
        child.wait()
        assert find_holder(database) is None and take(database, other) and find_holder(database) == other


@pytest.mark.fault(
    "Online training",
    "a trainer on another machine dies whose clock was an hour ahead",
    "another takes over once it was not heard of for as long as ever",
)
def test_a_lease_by_a_clock_that_was_ahead_ends_when_it_is_not_renewed(database: Database) -> None:
    elsewhere, here, others = "web-1:5e1f-4026531836/7:99/train", f"{name_of(os.getpid())}/train", leases.LeaseWatch()

    def taken(now: float) -> bool:
        with database.writing() as connection:
            return leases.take(connection, "train", here, now, SECONDS, others)

    assert take(database, elsewhere, NOW + 3600) and not taken(NOW)
    assert take(database, elsewhere, NOW + 3620) and not taken(NOW + 20), "it is heard of"
    assert not taken(NOW + 20 + SECONDS - 1) and taken(NOW + 20 + SECONDS)
