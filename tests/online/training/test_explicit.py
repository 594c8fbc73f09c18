"""A commit that somebody asks for trains on what is there, all of it and now."""

from pathlib import Path

import pytest

from astune.online.store import audit, commits
from astune.online.store.commits import CommitRow, Wanted
from astune.online.training.log import line_of
from astune.online.training.trainer import Trainer
from astune.store import tables
from astune.store.database import Database
from tests.online.training.world import World, config_of
from tests.online.training.world import database as database


def ticked(world: World, trainer: Trainer) -> list[CommitRow]:
    """The commits that it makes until none is due."""
    rows = []
    while (row := world.tick(trainer)) is not None:
        rows.append(row)
    return rows


def made_until_idle(world: World) -> list[CommitRow]:
    trainer = world.trainer()
    rows = ticked(world, trainer)
    trainer.leave()
    return rows


def states(world: World) -> set[str]:
    return {row["state"] for row in world.rows(tables.feedback)}


def test_more_than_one_version_may_learn_from_is_learned_by_commits_right_after_it(
    database: Database, tmp_path: Path
) -> None:
    world = World(database, tmp_path, config_of(max_episodes=2))
    for reward in (1.0, 0.0) * 3:
        world.rate(reward)
    world.ask()
    asked = world.now
    rows = made_until_idle(world)
    assert [(row.state, row.version, row.by) for row in rows] == [("made", number, "hand") for number in (1, 2, 3)]
    assert [row.wanted.time_threshold for row in rows] == [None, asked, asked], "what comes later is not its business"
    assert states(world) == {"trained"}


@pytest.mark.fault(
    "Online training",
    "the newest ratings, as many as a commit may learn from, give nothing to learn from: all say the same",
    "the commit goes on to the ratings before them, and those that say nothing wait for others",
)
@pytest.mark.parametrize("by", ["hand", "timer"])
def test_what_was_rated_before_as_many_as_fit_that_say_nothing_is_learned_from(
    database: Database, tmp_path: Path, by: str
) -> None:
    world = World(database, tmp_path, config_of(max_episodes=2, every_seconds=None if by == "hand" else 10.0))
    trainer = world.trainer()
    for task, second in (("first", 0.0), ("second", 0.0), ("third", 1.0), ("fourth", 1.0)):
        world.rate(1.0, task_id=task, run_id="0")
        world.rate(second, task_id=task, run_id="1")
    world.now += 10
    if by == "hand":
        world.ask()
    row = world.tick(trainer)
    assert row is not None and (row.state, row.by) == ("made", by) and row.figures is not None
    assert row.figures["waiting/for_a_signal"] == 4.0 and row.figures["waiting/for_a_later"] == 2.0
    world.now += 10
    row = world.tick(trainer)
    assert row is not None and (row.state, row.version) == ("made", 2)
    assert [each["state"] for each in world.rows(tables.feedback)] == ["trained"] * 4 + ["counts"] * 4
    world.now += 10
    assert [row.state for row in ticked(world, trainer)] == (["empty"] if by == "timer" else [])
    world.rate(0.0, task_id="third", run_id="2")
    world.now += 10
    if by == "hand":
        world.ask()
    row, *_ = ticked(world, trainer)
    assert row.state == "made" and row.figures is not None and row.figures["episodes/trained"] == 3.0
    trainer.leave()


def test_nothing_to_learn_from_changes_nothing_and_is_not_looked_at_again(database: Database, tmp_path: Path) -> None:
    world = World(database, tmp_path, config_of(max_episodes=2, every_seconds=10.0))
    trainer = world.trainer()
    for task in ("first", "second", "third"):
        for run in ("0", "1"):
            world.rate(1.0, task_id=task, run_id=run)
    world.ask()
    (row,) = ticked(world, trainer)
    assert row.state == "empty" and row.figures is not None
    assert (row.figures["rated"], row.figures["waiting/for_a_signal"]) == (6.0, 4.0)
    assert row.figures["why"] == "nothing that was rated has anything to learn from: 2 no_signal, 4 for_a_signal"
    assert states(world) == {"counts"}
    with database.reading() as connection:
        (line,) = audit.lines(connection, what="commit empty")
    assert line.details["waits"] == {"no_signal": 2, "for_a_signal": 4}, "nothing is changed: all of it still counts"
    world.now += 10
    assert ticked(world, trainer) == []
    trainer.leave()


def test_a_group_whose_wait_is_over_is_learned_from_behind_one_that_says_nothing(
    database: Database, tmp_path: Path
) -> None:
    rules = {"max_episodes": 3, "every_seconds": 10.0, "group_wait_seconds": 100.0}
    world = World(database, tmp_path, config_of(**rules, astune={"rollout": {"num_repeat": 3}}))
    trainer = world.trainer()
    for task, rewards in (("two of three", (1.0, 0.0)), ("all three", (1.0, 1.0, 1.0))):
        for run, reward in enumerate(rewards):
            world.rate(reward, task_id=task, run_id=str(run))
    world.now += 10
    assert [row.state for row in ticked(world, trainer)] == ["empty"]
    world.now += 100
    assert [row.state for row in ticked(world, trainer)] == ["made"]
    trainer.leave()


def test_what_is_rated_while_a_commit_finds_nothing_makes_the_next_one_due(database: Database, tmp_path: Path) -> None:
    world = World(database, tmp_path, config_of(every_seconds=10.0))

    def rate(run: int, reward: float) -> None:
        world.rate(reward, task_id="t", run_id=str(run))

    def phase(name: str) -> None:
        if name == "planned" and len(world.rows(tables.feedback)) == 2:
            rate(2, 0.0)

    trainer = world.trainer(phase)
    rate(0, 1.0)
    rate(1, 1.0)
    world.ask()
    assert [row.state for row in ticked(world, trainer)] == ["empty"]
    world.now += 10
    assert [(row.by, row.state) for row in ticked(world, trainer)] == [("timer", "made")]
    trainer.leave()


def test_the_rest_of_a_commit_by_the_clock_waits_for_the_next(database: Database, tmp_path: Path) -> None:
    world = World(database, tmp_path, config_of(max_episodes=2, every_seconds=10.0))
    trainer = world.trainer()
    for reward in (1.0, 0.0) * 2:
        world.rate(reward)
    world.now += 10
    row = world.tick(trainer)
    assert row is not None and (row.by, row.version) == ("timer", 1)
    assert world.tick(trainer) is None


def test_a_commit_of_the_clock_that_waits_is_the_one_of_whoever_asks(database: Database, tmp_path: Path) -> None:
    with database.writing() as connection:
        number = commits.ask(connection, "episodes", 1000.0)
        assert commits.ask(connection, "client", 1002.0) == number
        assert commits.ask(connection, "timer", 1003.0) == number
        (row,) = commits.with_state(connection, "asked")
    assert (row.by, row.asked) == ("client", 1002.0)


def test_repeats_of_a_task_that_are_there_are_trained_at_once(database: Database, tmp_path: Path) -> None:
    world = World(database, tmp_path, config_of(group_wait_seconds=60.0))
    for run in range(2):
        world.say(float(run), about=[world.answer(f"m{run}", task_id="t", run_id=str(run))])
    row = world.commit()
    assert row.state == "made" and row.figures is not None
    assert row.figures["episodes/trained"] == 2.0 and row.figures["groups/incomplete"] == 1.0
    assert "1 group has fewer answers than astune.rollout.num_repeat (8)" in line_of(row)


def test_what_waits_has_a_line_in_the_audit(database: Database, tmp_path: Path) -> None:
    world = World(database, tmp_path, config_of(min_episodes=2))
    before = world.rate(1.0)
    assert world.commit().state == "empty"
    with database.reading() as connection:
        (line,) = audit.lines(connection, what="commit empty")
    assert line.details["waits"] == {"for_more": 1}
    world.rate(0.0, task_id="u")
    world.rate(1.0, task_id="t")
    world.rate(0.0, task_id="t")
    row = world.commit(wanted=Wanted(task_id="t"))
    assert row.state == "made", row
    with database.reading() as connection:
        (line,) = audit.lines(connection, what="version made")
    assert line.details["waits"] == {"not_asked_for": 2} and before
