"""What a release does with a version, from the store's point of view; real statistics, users by dice."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from astune.online.clock import SteadyClock
from astune.online.release.gate import GateResult
from astune.online.release.releaser import LEASE_SECONDS
from astune.online.store import aliases, releases
from astune.store import tables
from astune.store.database import Database
from astune.store.tables import versions
from tests.online.release.world import HOUR, World, config_of
from tests.store.databases import sqlite as sqlite
from tests.training.killed import Killed

YEAR = 8760 * HOUR
"""Of a machine's clock that is not set yet."""


def test_a_good_version_is_shown_to_more_and_more_users_and_becomes_champion(sqlite: Database) -> None:
    world = World(sqlite)
    number = world.make(right=0.95)
    ended = world.go_on()
    assert (ended.state, world.aliases()) == ("promoted", {"champion": number, "previous": 0})
    shares = [each["share"] for each in world.said(releases.ADVANCED)]
    assert shares == [0.4, 0.6, 1.0]
    assert "no held-out tasks: skipped" in world.said(releases.ADVANCED)[0]["why"]
    assert world.last().figures["looks"][-1]["decision"] == "promote"
    assert world.tick() is None


def test_a_version_that_users_like_less_is_rolled_back_at_its_first_share(sqlite: Database) -> None:
    world = World(sqlite)
    number = world.make(right=0.05)
    ended = world.go_on()
    assert (ended.state, ended.stage) == ("rolled_back", 0)
    assert ended.reason is not None and ended.reason.startswith("guardrail metric: 0.")
    assert world.aliases() == {"champion": 0}
    with sqlite.reading() as connection:
        held = connection.scalar(sa.select(versions.c.held).where(versions.c.version == number))
    assert held == f"rolled back: {ended.reason}"
    assert world.tick() is None  # it is not tested again


def test_a_version_that_fails_is_rolled_back_at_once_whoever_has_rated(sqlite: Database) -> None:
    world = World(sqlite)
    number = world.make(right=0.9)
    world.tick()
    world.meet(30, rate=False, errors={number: 20})
    ended = world.tick()
    assert ended is not None and ended.state == "rolled_back"
    assert ended.reason is not None and ended.reason.startswith("guardrail errors: share ")
    assert world.said(releases.ENDED)[0]["why"] == ended.reason


def test_a_version_that_fails_once_all_users_have_it_is_rolled_back(sqlite: Database) -> None:
    world = World(sqlite)
    number, releaser = world.make(right=0.9), world.releaser()
    while (found := world.tick(releaser)) is not None and found.share < 1.0:
        world.meet()
    world.meet(6, rate=False, errors={number: 20})
    ended = world.tick(releaser)
    assert ended is not None and (ended.state, ended.stage) == ("rolled_back", 2)
    assert ended.reason is not None and ended.reason.startswith("guardrail errors: share ")


def test_the_gate_is_played_before_a_user_meets_a_version(sqlite: Database) -> None:
    reader = {"task_reader": {"jsonl": {"validation": {"file_path": "held_out.jsonl"}}}}
    world = World(sqlite, config_of(astune=reader, gate_tasks=5, cool_down_hours=0.0))
    for verdict, state in (("worse", "rolled_back"), ("unknown", "held"), ("passed", "testing")):
        number = world.make(right=0.9)
        releaser = world.releaser(lambda _, verdict=verdict: GateResult(verdict, ["greedy: success 0.2 against 0.9"]))
        assert [found.state for found in (world.tick(releaser), world.tick(releaser)) if found] == ["gate", state]
        releaser.leave()
        assert (world.last().challenger, world.last().state) == (number, state)
        assert world.last().figures["gate"]["verdict"] == verdict
    assert world.aliases() == {"champion": 0, "challenger": number}


def test_a_release_that_is_killed_at_any_step_goes_on_from_there(sqlite: Database) -> None:
    world = World(sqlite)
    number = world.make(right=0.95)
    seen = []
    for kill in range(30):
        before = world.said(releases.ADVANCED)

        def phase(name: str, kill: int = kill) -> None:
            if name == "writing" and kill % 2:
                raise Killed

        try:
            found = world.tick(world.releaser(phase=phase))
        except Killed:
            assert world.said(releases.ADVANCED) == before
        else:
            if found is not None and not found.is_open:
                break
        world.now += LEASE_SECONDS + 1
        world.meet()
        seen.append(world.aliases()["champion"])
    assert world.aliases()["champion"] == number
    assert [each["share"] for each in world.said(releases.ADVANCED)] == [0.4, 0.6, 1.0]
    assert len(world.said(releases.ENDED)) == 1


def test_figures_that_take_long_to_read_are_read_less_often(sqlite: Database) -> None:
    world = World(sqlite)
    number = world.make(right=0.9)
    world.tick()
    times = iter([0.0, 2.0, 10.0, 19.0, 22.0])  # a reading takes 2 seconds: the next is 18 after it at the soonest
    releaser = world.releaser()
    releaser._clock = lambda: next(times)
    seen = []
    for _ in range(3):
        with sqlite.reading() as connection:
            seen.append(releaser._read_figures(connection, world.last(), releaser._clock()))
        world.meet(20, rate=False, errors={number: 10})
    assert seen[0] is seen[1] is seen[2]
    with sqlite.reading() as connection:
        assert releaser._read_figures(connection, world.last(), 20.0) is not seen[0]


def test_of_two_releases_one_acts(sqlite: Database) -> None:
    world = World(sqlite)
    world.make(right=0.9)
    one, other = world.releaser(), world.releaser()
    begun = one.tick()
    assert begun is not None and begun.state == "testing"
    assert other.tick() == begun == world.last()  # it tells what there is, and does nothing
    world.now += LEASE_SECONDS + 1  # the first is not heard of
    other.tick()
    looked = world.last()
    assert len(looked.figures["looks"]) == 1
    assert one.tick() == looked == world.last()


def test_what_a_person_decides_meanwhile_stands(sqlite: Database) -> None:
    world = World(sqlite)
    first = world.make(right=0.9)
    world.tick()
    with sqlite.writing() as connection:
        releases.end_release(connection, first, state="held", reason="ana", role="command", now=world.now)
    assert world.tick() is None  # not tested again by itself
    second = world.make(right=0.9)
    world.now += 2 * HOUR
    world.tick()
    assert world.last().challenger == second
    with sqlite.writing() as connection:
        aliases.promote(connection, first, role="command", why="ana", now=world.now)
    world.tick()
    assert (world.last().state, world.last().reason) == ("held", f"v{first} became champion meanwhile")


def test_after_a_release_that_did_not_end_well_the_next_one_waits(sqlite: Database) -> None:
    world = World(sqlite, config_of(cool_down_hours=2.0))
    world.make(right=0.05)
    world.go_on()
    ended, second = world.last().ended, world.make(right=0.9)
    world.now = ended + 1.9 * HOUR
    assert world.tick() is None
    world.now = ended + 2.1 * HOUR
    world.tick()
    assert world.last().challenger == second


def test_a_newer_version_replaces_the_one_that_is_tested_where_it_may(sqlite: Database) -> None:
    world = World(sqlite, config_of(while_testing="replace"))
    first = world.make(right=0.9)
    world.tick()
    second = world.make(right=0.9, parent=first)
    world.tick()
    assert (world.last().challenger, world.last().state) == (second, "testing")
    assert world.said(releases.ENDED)[0]["why"] == f"replaced by v{second} (astune.online.release.while_testing)"
    assert world.go_on().state == "promoted"


@pytest.mark.parametrize("hours", [1.0, -1.0])
def test_a_clock_that_is_set_ends_no_stage(sqlite: Database, hours: float) -> None:
    world = World(sqlite)
    world.make(right=0.95)
    wall = [0.0]
    clock = SteadyClock(lambda: world.now + wall[0], lambda: world.now)
    releaser = world.releaser(clock=clock)
    begun = releaser.tick()
    assert begun is not None and begun.stage == 0
    wall[0] = hours * HOUR
    world.now += 1.0
    waits = releaser.tick()
    assert waits is not None and waits.stage == 0
    assert "0.0 of 0.5 hours" in (waits.reason or "")


@pytest.mark.fault(
    "Online training",
    "a stage began, or a release ended, by a clock that was a year ahead, and the process is started again",
    "the stage begins anew and says so; the next release does not wait for that time",
)
def test_what_began_or_ended_by_a_clock_that_was_ahead_is_not_waited_for(sqlite: Database) -> None:
    world = World(sqlite)
    world.make(right=0.95)
    world.now += YEAR
    world.tick()
    world.now -= YEAR  # it is right when the process is started again
    assert world.go_on().state == "promoted"
    world.make(right=0.05)
    assert world.go_on().state == "rolled_back"
    with sqlite.writing() as connection:
        connection.execute(tables.releases.update().values(ended=world.now + YEAR))
    third = world.make(right=0.95)
    world.tick()
    assert world.last().challenger == third
