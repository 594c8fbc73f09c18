"""When a commit is due, who makes it, and how far it goes."""

import asyncio
import errno
import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from astune.algorithm.step_advantage import Rewards
from astune.cli.online.train import _status_lines
from astune.config.schema import AlgorithmConfig, AstuneConfig
from astune.online.store import audit, leases, versions
from astune.online.store.commits import CommitRow
from astune.online.store.feedback.states import FeedbackPart
from astune.online.training.commit import LEASE, LEASE_SECONDS
from astune.online.training.learning import MOST_HALVINGS
from astune.online.training.log import line_of, status_of
from astune.online.training.trainer import FAILED_SECONDS, MOST_BEGINNINGS, Trainer
from astune.online.training.weights import make_online_estimator
from astune.store import tables
from astune.store.database import Database, open_database
from astune.testing import CountingLearner, ScriptedPolicy
from astune.testing.engine import STATE_FILE, script_engine
from astune.training.engine import Engine
from astune.types import Task
from tests.online.training.world import COUNTING, World, config_of
from tests.online.training.world import database as database
from tests.training.killed import Killed


def pair(world: World) -> None:
    world.rate(1.0)
    world.rate(0.0)


def newest_weight(world: World) -> float:
    with world.database.reading() as connection:
        version = versions.newest(connection)
    return float(json.loads((world.folder / "versions" / str(version.folder) / STATE_FILE).read_text())["weight"])


def test_the_clock_makes_a_commit_due_once_enough_is_rated(database: Database, tmp_path: Path) -> None:
    world = World(database, tmp_path, config_of(every_seconds=100.0, min_episodes=2))
    trainer = world.trainer()
    pair(world)
    assert world.tick(trainer) is None, "too early"
    world.now += 100
    row = world.tick(trainer)
    assert row is not None and (row.by, row.state) == ("timer", "made")
    world.rate(1.0)
    world.now += 100
    assert world.tick(trainer) is None, "one is too few: no commit is asked for"
    world.rate(0.25)
    row = world.tick(trainer)
    assert row is not None and row.version == 2


def test_a_trainer_takes_up_what_another_process_was_in_the_way_of(database: Database, tmp_path: Path) -> None:
    world, refused = World(database, tmp_path), threading.Event()
    pair(world)
    number = world.ask()
    own = open_database(str(database.url))
    sa.event.listen(own.engine, "connect", lambda raw, _: raw.execute("PRAGMA busy_timeout=0"))
    sa.event.listen(own.engine, "handle_error", lambda _: refused.set())
    own.engine.dispose()
    trainer = Trainer(world.config, world.load_engine, own, tmp_path, clock=world.clock)
    rows: list[CommitRow | None] = []
    ticking = threading.Thread(target=lambda: rows.append(world.tick(trainer)))
    with database.writing():
        ticking.start()
        assert refused.wait(60)
    ticking.join()
    trainer.leave()
    own.close()
    assert [(row.number, row.state) for row in rows if row is not None] == [(number, "made")]


def test_enough_episodes_make_a_commit_due(database: Database, tmp_path: Path) -> None:
    world = World(database, tmp_path, config_of(every_episodes=3))
    trainer = world.trainer()
    pair(world)
    assert world.tick(trainer) is None
    world.rate(0.5)
    row = world.tick(trainer)
    assert row is not None and (row.by, row.state, row.version) == ("episodes", "made", 1)
    assert world.tick(trainer) is None


@pytest.mark.fault(
    "Online training",
    "everybody says the same of every answer: there is nothing to compare",
    "one commit finds nothing to learn and says so; no further one is made until somebody says something else",
)
def test_more_of_what_taught_nothing_makes_no_commit_until_somebody_says_something_else(
    database: Database, tmp_path: Path
) -> None:
    world = World(database, tmp_path, config_of(every_episodes=3, every_seconds=10.0))
    trainer, rows = world.trainer(), list[CommitRow]()

    def rate(reward: float) -> None:
        world.rate(reward)
        world.now += 4
        while (row := world.tick(trainer)) is not None:
            rows.append(row)

    for _ in range(12):
        rate(1.0)
    assert [row.state for row in rows] == ["empty"]
    status = "\n".join(_status_lines(status_of(database, world.now)))
    assert "12 episodes wait for a commit; commit 1 made no version of what was there: nothing that" in status
    rate(0.0)
    assert [row.state for row in rows] == ["empty", "made"] and rows[-1].figures is not None
    assert rows[-1].figures["episodes/trained"] == 13.0
    world.say(FeedbackPart("correction", correction="no"), about=world.rate(1.0))
    world.now += 10
    assert world.tick(trainer) is not None, "a correction is_enough by itself"


def test_a_commit_that_failed_is_made_again_after_a_while(database: Database, tmp_path: Path) -> None:
    failing = [OSError(errno.ENOSPC, "No space left on device")]

    class Full(CountingLearner):
        def save(self, directory: Path) -> None:
            super().save(directory)
            if failing:
                raise failing.pop()

    def load(config: AstuneConfig) -> Engine:
        engine = COUNTING(config)
        assert isinstance(engine.policy, ScriptedPolicy)
        return replace(engine, learner=Full(engine.policy))

    world = World(database, tmp_path, config_of(every_episodes=2), load)
    trainer = world.trainer()
    pair(world)
    row = world.tick(trainer)
    assert row is not None and row.state == "failed" and "No space left on device" in str(row.error)
    assert list((tmp_path / "versions").iterdir()) == [], "nothing is half written"
    assert {each["state"] for each in world.rows(tables.feedback)} == {"counts"}
    assert world.tick(trainer) is None
    world.now += FAILED_SECONDS
    row = world.tick(trainer)
    assert row is not None and (row.state, row.version) == ("made", 1)


def test_a_trainer_that_is_stopped_lets_others_train(database: Database, tmp_path: Path) -> None:
    world = World(database, tmp_path)
    pair(world)
    world.ask()
    seen: list[Any] = []

    def told(row: Any) -> None:
        seen.append(row.version)
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(world.trainer().run(told))
    assert seen == [1]
    with database.reading() as connection:
        assert leases.find_holder(connection, LEASE, world.now) is None


def test_a_commit_that_kills_every_trainer_is_given_up(database: Database, tmp_path: Path) -> None:
    def phase(name: str) -> None:
        if name == "planned":
            raise Killed

    world = World(database, tmp_path)
    pair(world)
    world.ask()
    for _ in range(MOST_BEGINNINGS):
        with pytest.raises(Killed):
            world.tick(world.trainer(phase))
        world.now += LEASE_SECONDS + 1
    row = world.tick(trainer := world.trainer())
    assert row is not None and row.state == "failed" and "trainers died in it" in str(row.error)
    assert world.commit(trainer).state == "made", "what was rated has waited for another one"


@pytest.mark.fault(
    "Online training",
    "the learning rate is too high: an update goes further than `max_kl`",
    "it is undone and taken again by half the rate, up to ten times; then what it was to learn waits",
)
def test_an_update_that_goes_too_far_is_taken_by_half_the_rate_or_waits(tmp_path: Path) -> None:
    def world_of(name: str, max_kl: float | None) -> World:
        config = config_of(astune={"trainer": {"learning_rate": 0.5, "updates_per_step": 2}}, max_kl=max_kl)
        found = World(open_database(f"sqlite:///{tmp_path}/{name}.db"), tmp_path / name, config)
        for task in range(2):  # of each only the good attempt is trained: every update makes a step of its own
            for run in (0, 1):
                answer = found.answer(f"{task}-{run}", task_id=str(task), run_id=str(run), temperature=float(run))
                found.say(float(run), about=[answer])
        return found

    free = world_of("free", None)
    made = free.commit()
    assert made.figures is not None and made.figures["updates/taken"] == 2.0
    kl = made.figures["kl/from_version_before"]
    bound = world_of("bound", kl * 0.9)
    row = bound.commit()
    assert row.state == "made" and row.figures is not None
    assert row.figures["updates/taken"] == 2.0 and row.figures["kl/undone"] == pytest.approx(kl)
    assert row.figures["kl/from_version_before"] <= 0.9 * kl and row.figures["updates/undone"] == 1.0
    assert newest_weight(bound) == pytest.approx(newest_weight(free) * 0.75)
    assert "by 0.5 of astune.trainer.learning_rate" in line_of(row)
    with bound.database.reading() as connection:
        (line,) = audit.lines(connection, what="version made")
    assert line.details["share_of_learning_rate"] == 0.5
    tight = world_of("tight", 1e-12)
    row = tight.commit()
    assert row.state == "empty" and row.figures is not None
    assert f"even at {0.5**MOST_HALVINGS:.2g} of astune.trainer.learning_rate" in str(row.figures["why"])
    assert row.figures["waiting/for_a_smaller_step"] == 2.0
    assert {each["state"] for each in tight.rows(tables.feedback)} == {"counts"}
    for each in (free, bound, tight):
        each.database.close()


def test_a_commit_whose_updates_are_no_numbers_fails_and_changes_nothing(database: Database, tmp_path: Path) -> None:
    world = World(database, tmp_path, load_engine=script_engine(lambda prompt: "4", skipped=[0]))
    pair(world)
    row = world.commit()
    assert row.state == "failed" and "not finite" in str(row.error)
    assert not world.rows(tables.versions) and not world.rows(tables.episodes)
    assert {each["state"] for each in world.rows(tables.feedback)} == {"counts"}


def test_earlier_episodes_are_learned_from_again_as_a_share(database: Database, tmp_path: Path) -> None:
    world = World(database, tmp_path, config_of(replay_share=0.5))
    trainer = world.trainer()
    for task in range(3):
        for run in (0, 1):
            world.say(float(run), about=[world.answer(f"{task}-{run}", task_id=str(task), run_id=str(run))])
    first = world.commit(trainer)
    assert first.figures is not None and "episodes/replayed" not in first.figures
    for run in (0, 1):
        world.say(float(run), about=[world.answer(f"new-{run}", task_id="new", run_id=str(run))])
    row = world.commit(trainer)
    assert row.figures is not None and row.figures["episodes/replayed"] == 2.0
    assert row.figures["episodes/trained"] == 2.0, "what is learned again is no new episode"
    learned = [each for each in world.rows(tables.samples) if each["commit_id"] == row.number]
    assert len(learned) == 4 and sum(each["episode_id"].startswith("commit-1/") for each in learned) == 2


def test_what_an_earlier_episode_trained_is_context_for_a_later_one(database: Database, tmp_path: Path) -> None:
    world = World(database, tmp_path)
    first = world.answer("a1", conversation="a", exchange="a1")
    second = world.answer("a2", conversation="a", exchange="a1", follows=first, prompt=(1, 2, 3, 4, 5, 6))
    world.say(1.0, about=[first])
    world.say(0.0, about=[world.answer("b")])
    assert world.commit().state == "made"
    world.say(1.0, about=[second])
    world.say(0.0, about=[world.answer("c")])
    assert world.commit().state == "made"
    with database.reading() as connection:
        rows = connection.execute(
            tables.samples.join(tables.turns, tables.turns.c.id == tables.samples.c.turn_id)
            .select()
            .with_only_columns(tables.turns.c.msg_id, tables.samples.c.commit_id)
        )
        assert sorted(map(tuple, rows)) == [("a1", 1), ("a2", 2), ("b", 1), ("c", 2)]


def test_what_cannot_be_trained_is_left_out_and_says_why(database: Database, tmp_path: Path) -> None:
    world = World(database, tmp_path, config_of(max_age_seconds=100.0))
    world.rate(1.0)
    world.now += 200
    pair(world)
    world.rate(1.0, temperature=0.0)
    world.rate(1.0, prompt=(), output=(), excluded="redacted")
    row = world.commit()
    assert row.state == "made" and row.figures is not None
    assert row.figures["left_out/too_old"] == 1.0 and row.figures["left_out/greedy"] == 1.0
    left_out = {each["reason"] for each in world.rows(tables.episodes) if each["state"] == "left_out"}
    assert left_out == {"too_old", "greedy", "redacted"}
    states = sorted((each["state"], each["reason"]) for each in world.rows(tables.feedback))
    assert states == [
        ("left_out", "greedy"),
        ("left_out", "redacted"),
        ("left_out", "too_old"),
        ("trained", "v1"),
        ("trained", "v1"),
    ]


@pytest.mark.parametrize("backbone", ["local", "trinity"])
def test_trinity_learns_from_one_temperature_and_local_from_any(tmp_path: Path, backbone: str) -> None:
    database = open_database(f"sqlite:///{tmp_path}/store.db")
    world = World(database, tmp_path, config_of(astune={"backbone": backbone}))
    pair(world)
    (warmer,) = world.rate(0.75, temperature=1.5)
    row = world.commit()
    assert row.state == "made" and row.figures is not None
    trained = {each["msg_id"] for each in world.rows(tables.turns) if each["id"] in _trained_turns(world)}
    assert (warmer in trained) == (backbone == "local")
    assert row.figures.get("left_out/other_temperature", 0.0) == (backbone == "trinity")
    database.close()


def _trained_turns(world: World) -> set[int]:
    return {each["turn_id"] for each in world.rows(tables.samples)}


def test_a_correction_that_the_template_cannot_write_is_counted(database: Database, tmp_path: Path) -> None:
    world = World(database, tmp_path)
    pair(world)
    wrong = world.answer("wrong", question="x " * 4000)
    world.say(FeedbackPart("correction", correction="It is 5."), about=[wrong])
    row = world.commit()
    assert row.state == "made" and row.figures is not None and row.figures["left_out/cannot_be_written"] == 1.0


def test_attempts_without_siblings_are_compared_with_earlier_ones_of_their_kind(tmp_path: Path) -> None:
    estimator = make_online_estimator(AlgorithmConfig(baseline_by="agent"))

    def rewards(kind: str, *values: float) -> Rewards:
        return Rewards(Task("t", "", metadata={"agent": kind}), values)

    groups = [rewards("a", 1.0), rewards("a", 0.0), rewards("b", 5.0, 7.0), rewards("c", 3.0)]
    assert estimator("outcome", groups) == [[1.0], [-1.0], [-1.0, 1.0], [0.0]]
    estimator.observe({"outcome": groups})
    estimator.save(tmp_path)
    again = make_online_estimator(AlgorithmConfig(baseline_by="agent"))
    again.load(tmp_path)
    assert again("outcome", [rewards("a", 1.0), rewards("b", 7.0)]) == [[0.5], [1.0]]
