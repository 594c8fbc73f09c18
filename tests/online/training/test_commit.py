import json
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from astune.config.schema import AstuneConfig
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.errors import RunFolderError
from astune.online.store import audit, retention, versions
from astune.online.store.answers import find_trained, load_answers
from astune.online.store.commits import Wanted
from astune.online.store.feedback.states import FeedbackPart
from astune.online.store.retention import DAY, DeletionScope
from astune.online.training.trainer import Trainer
from astune.store import tables
from astune.store.database import Database, open_database
from astune.testing import CountingLearner, ScriptedPolicy, write_test_model_dir
from astune.testing.engine import STATE_FILE
from astune.training.engine import Engine
from astune.types import Sample, Update
from tests.online.training.world import World, config_of
from tests.store.databases import database as database
from tests.store.databases import sqlite as sqlite
from tests.store.databases import url as url


def weight(world: World, number: int) -> float:
    """The only weight of a version of the counting engine."""
    with world.database.reading() as connection:
        version = versions.find(connection, number)
    assert version is not None and version.folder is not None
    return float(json.loads((world.folder / "versions" / version.folder / STATE_FILE).read_text())["weight"])


def test_rated_answers_make_a_version_that_says_what_it_was_made_of(database: Database, tmp_path: Path) -> None:
    world = World(database, tmp_path)
    world.rate(1.0, 2)
    world.rate(0.0, 2)
    row = world.commit()
    assert (row.state, row.base_version, row.version, row.error) == ("made", 0, 1, None)
    assert row.figures is not None and row.figures["reward/mean"] == 0.5 and row.figures["reward/n"] == 4.0
    with database.reading() as connection:
        version = versions.newest(connection)
    assert (version.number, version.parent, version.commit_id) == (1, 0, row.number)
    assert version.config["trainer"]["learning_rate"] == 0.01
    assert {each["state"] for each in world.rows(tables.episodes)} == {"trained"}
    assert len(world.rows(tables.episode_messages)) == 4
    learned = world.rows(tables.samples)
    assert [(each["method"], each["tokens"]) for each in learned] == [("policy", 2)] * 4
    assert [each["advantage"] for each in learned] == pytest.approx([2 / 3, 2 / 3, -2 / 3, -2 / 3])
    assert {each["state"] for each in world.rows(tables.feedback)} == {"trained"}


def test_nothing_is_trained_twice(database: Database, tmp_path: Path) -> None:
    world = World(database, tmp_path)
    world.rate(1.0)
    world.rate(0.0)
    assert world.commit().state == "made"
    again = world.commit()
    assert again.state == "empty" and again.figures is not None
    assert again.figures["why"] == "nobody has rated anything that was not trained yet"
    assert len(world.rows(tables.versions)) == 1


def test_a_trainer_goes_on_from_the_newest_version(tmp_path: Path) -> None:
    """Bit for bit the same, whether it is the process that made it or a new one."""
    found = []
    for same_process in (True, False):
        database = open_database(f"sqlite:///{tmp_path}/{same_process}.db")
        world = World(database, tmp_path / str(same_process))
        trainer: Trainer | None = world.trainer() if same_process else None
        for _ in range(3):
            world.rate(1.0, 2)
            world.rate(0.25)
            assert world.commit(trainer).state == "made"
        assert len(list((world.folder / "versions").iterdir())) == 2, "astune.trainer.keep_checkpoints"
        found.append([weight(world, number) for number in (2, 3)])
        database.close()
    assert found[0] == found[1]


def test_repeats_of_a_task_are_compared_with_each_other(sqlite: Database, tmp_path: Path) -> None:
    world = World(sqlite, tmp_path)
    for task, rewards in (("hard", (0.0, 0.2)), ("easy", (0.8, 1.0))):
        for run, reward in enumerate(rewards):
            msg_id = world.answer(f"{task}-{run}", task_id=task, run_id=str(run))
            world.say(reward, about=[msg_id])
    assert world.commit().state == "made"
    learned = [each["advantage"] for each in world.rows(tables.samples)]
    assert learned == pytest.approx([-1.0, 1.0, -1.0, 1.0]), "grpo, within each task"


def test_a_first_answer_that_several_runs_share_gets_the_reward_of_each(sqlite: Database, tmp_path: Path) -> None:
    world = World(sqlite, tmp_path)
    world.answer("first")
    runs: dict[str, Any] = {"conversation": "c-first", "follows": "first", "exchange": "first", "task_id": "t"}
    for run, reward in (("good", 1.0), ("bad", 0.0)):
        world.say(reward, about=[world.answer(run, prompt=(1, 2, 3, 4, 5, 9), output=(6,), **runs)])
    assert world.commit().state == "made"
    with sqlite.reading() as connection:
        rows = connection.execute(
            sa.select(tables.turns.c.msg_id, tables.samples.c.advantage)
            .join(tables.samples)
            .order_by(tables.samples.c.id)
        )
        learned = sorted((msg_id, round(advantage)) for msg_id, advantage in rows)
    assert learned == [("bad", -1), ("first", 0), ("good", 1)], "once, with the mean of what both are worth"


def test_no_file_of_a_version_has_the_name_of_a_user(sqlite: Database, tmp_path: Path) -> None:
    world = World(sqlite, tmp_path, config_of(astune={"algorithm": {"baseline_by": "user"}}))
    for user, reward in (("ana-lopez", 1.0), ("ana-lopez", 0.5), ("bo-chen", 0.5), ("bo-chen", 0.0)):
        world.say(reward, about=[world.answer(f"m{world.now:g}", user=user)], author=user)
    assert world.commit().state == "made"
    learned = [each["advantage"] for each in world.rows(tables.samples)]
    assert learned == [0.5, -0.5, 0.5, -0.5], "compared with the same user's"
    files = [path for path in tmp_path.rglob("*") if path.is_file() and "store.db" not in path.name]
    assert any(path.name == "advantage.json" for path in files)
    assert not [path for path in files if b"ana-lopez" in path.read_bytes()]


def test_corrections_comparisons_and_thumbs_are_learned_beside_rewards(sqlite: Database, tmp_path: Path) -> None:
    world = World(sqlite, tmp_path, config_of(weight_thumbs=0.5, most_per_author=1.0))
    world.rate(1.0)
    world.rate(0.0)
    for liked in (1.0, 0.0):
        world.say(FeedbackPart("thumb", value=liked), about=[world.answer(f"thumb-{liked}")])
    world.say(FeedbackPart("correction", correction="It is 5."), about=[world.answer("wrong")])
    better, worse = world.answer("better"), world.answer("worse")
    world.say(FeedbackPart("preference"), better=better, worse=worse)
    row = world.commit()
    assert row.state == "made" and row.figures is not None
    learned = world.rows(tables.samples)
    assert sorted(each["method"] for each in learned) == ["dpo", "dpo", "kto", "kto", "policy", "policy", "sft"]
    by_method = {(each["method"], each["advantage"] > 0): each for each in learned}
    assert by_method["sft", True]["turn_id"] is None
    assert by_method["policy", True]["weight"] * by_method["policy", True]["tokens"] == pytest.approx(1 / 4.5), (
        "two rated answers and a correction weigh 1 each, two thumbs and a comparison a half"
    )
    assert row.figures["episodes/trained"] == 6.0


def test_of_answers_that_are_compared_all_that_led_to_them_is_learned(sqlite: Database, tmp_path: Path) -> None:
    world = World(sqlite, tmp_path)
    for name in ("better", "worse"):
        first = world.answer(f"{name}-0", conversation=name)
        then = {"exchange": first, "follows": first, "prompt": (1, 2, 3, 4, 5, 6)}
        world.answer(f"{name}-1", conversation=name, **then)
    world.say(FeedbackPart("preference"), better="better-1", worse="worse-1")
    row = world.commit()
    assert row.state == "made" and row.figures is not None and row.figures["turns/dpo"] == 4.0


def test_a_correction_is_learned_with_the_date_of_the_conversation_it_is_from(sqlite: Database, tmp_path: Path) -> None:
    model_dir = write_test_model_dir(tmp_path / "dated")
    template = model_dir / "chat_template.jinja"
    template.write_text("{{ strftime_now('%d %b %Y') }}\n" + template.read_text())
    dated, learned = ChatFormat.load(model_dir), list[Sample]()

    class Noting(CountingLearner):
        async def update(self, samples: Sequence[Sample], learning_rate: float) -> Update:
            learned.extend(samples)
            return await super().update(samples, learning_rate)

    def load(config: AstuneConfig) -> Engine:
        policy = ScriptedPolicy(lambda prompt: "4", dated)
        return Engine(policy, Noting(policy), dated, beside=True)

    world = World(sqlite, tmp_path, load_engine=load)
    world.say(FeedbackPart("correction", correction="It is 5."), about=[world.answer("wrong")])
    assert world.commit().state == "made"
    (sample,) = learned
    assert dated.decode(sample.timeline.token_ids).startswith("01 Jan 1970")


def test_of_trainers_at_once_one_makes_each_version(database: Database, tmp_path: Path) -> None:
    world = World(database, tmp_path)
    for task in range(4):
        for run in (0, 1):
            world.say(float(run), about=[world.answer(f"{task}-{run}", task_id=str(task), run_id=str(run))])
        world.ask(Wanted(task_id=str(task)))
    left = threading.Event()

    def work() -> None:
        trainer = world.trainer()
        while not left.is_set():
            world.tick(trainer)
            trainer.leave()
            if {row["state"] for row in world.rows(tables.commits)} == {"made"}:
                left.set()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with database.reading() as connection:
        made = versions.every(connection)
    assert [(version.number, version.parent) for version in made] == [(1, 0), (2, 1), (3, 2), (4, 3)]
    assert len({version.commit_id for version in made}) == 4
    assert sorted(row["turn_id"] for row in world.rows(tables.samples)) == list(range(1, 9))


@pytest.mark.fault(
    "Online training",
    "the checkpoint of the newest version is damaged when the trainer goes on",
    "it goes on from the newest whole one that it was made from, and says so in log and audit; what the damaged one "
    "had learned is learned again",
)
def test_a_trainer_goes_on_from_the_newest_whole_version_and_learns_again_what_was_lost(
    database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(database, tmp_path)

    def rated() -> list[str]:
        return [*world.rate(1.0), *world.rate(0.0)]

    rated()
    assert world.commit().version == 1
    lost = rated()
    assert world.commit().version == 2
    next(tmp_path.glob(f"versions/v000002-*/{STATE_FILE}")).write_text("{}")
    rated()
    row = world.commit()
    assert (row.state, row.version, row.base_version) == ("made", 3, 1)
    assert [version["parent"] for version in world.rows(tables.versions)] == [0, 1, 1]
    assert "version 2 is damaged, training goes on from version 1" in caplog.text
    with database.reading() as connection:
        assert [line.subject for line in audit.lines(connection, what="version damaged")] == ["2"]
        assert [line.details["feedback"] for line in audit.lines(connection, what="version lost")] == [2]
        assert set(load_answers(connection, lost)) - find_trained(connection, lost) == set(lost)
    assert world.commit().version == 4, "which learns what version 2 had"
    assert {each["state"] for each in world.rows(tables.feedback)} == {"trained"}
    trained = Counter(each["turn_id"] for each in world.rows(tables.samples))
    assert (len(trained), set(trained.values())) == (6, {1})


def test_a_version_whose_checkpoint_is_broken_is_not_gone_on_from(sqlite: Database, tmp_path: Path) -> None:
    world = World(sqlite, tmp_path)
    for _ in range(2):
        world.rate(1.0)
        world.rate(0.0)
        if world.rows(tables.versions):
            next(tmp_path.glob(f"versions/v000001-*/{STATE_FILE}")).write_text("{}")
            with pytest.raises(RunFolderError, match=f"{STATE_FILE} is not as it was written"):
                world.commit()
        else:
            assert world.commit().state == "made"
    assert {row["state"] for row in world.rows(tables.feedback)} == {"trained", "counts"}


def test_what_is_deleted_during_a_commit_is_not_trained(database: Database, tmp_path: Path) -> None:
    world = World(database, tmp_path)
    first, *_ = world.rate(1.0, 2)
    world.rate(0.0, 2)
    deleted: list[int] = []

    def phase(name: str) -> None:
        if name == "renamed" and not deleted:
            done = retention.delete(database, DeletionScope(conversation=f"c-{first}"), role="command", now=world.now)
            deleted.append(done.requests)

    trainer = world.trainer(phase)
    failed = world.commit(trainer)
    assert deleted == [1] and failed.state == "failed" and "deleted meanwhile" in str(failed.error)
    row = world.commit(trainer)
    trainer.leave()
    assert (row.state, row.version) == ("made", 1)
    assert row.figures is not None and row.figures["reward/n"] == 3.0
    assert first not in {each["msg_id"] for each in world.rows(tables.episode_messages)}
    assert len(list((tmp_path / "versions").iterdir())) == 1


@pytest.mark.fault(
    "Online training",
    "a clock jumps ahead, with `keep_days`",
    "time in which nothing was written is not counted as an age, until somebody deletes by age: nothing is lost",
)
@pytest.mark.parametrize("talks_on", [False, True])
def test_a_clock_that_jumps_ahead_deletes_nothing(
    database: Database, tmp_path: Path, talks_on: bool, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(database, tmp_path, config_of(astune={"online": {"keep_days": 3.0}}))
    world.answer("a")
    world.tick(before := world.trainer())
    world.now += DAY * 0.9
    world.tick(before)  # says that it is at work
    world.now += DAY * 0.9
    world.answer("b")
    before.leave()
    world.now += 400 * DAY
    if talks_on:
        world.answer("c")
    trainer = world.trainer()
    for _ in range(20):
        world.tick(trainer)
        world.now += 3600
    assert {each["msg_id"] for each in world.rows(tables.requests)} >= {"a", "b"}
    (said,) = caplog.messages
    assert "400.0 days" in said and "astune online delete --older-than 3d" in said
    retention.delete(database, DeletionScope(before=world.now - 3 * DAY), role="command", now=world.now)
    world.answer("d")
    for _ in range(60):
        world.now += 3600
        world.tick(trainer)
    trainer.leave()
    assert {each["msg_id"] for each in world.rows(tables.requests)} == {"d"}


def test_the_trainer_deletes_what_is_older_than_it_may_be_kept(database: Database, tmp_path: Path) -> None:
    world = World(database, tmp_path, config_of(astune={"online": {"keep_days": 1.0}}))
    trainer = world.trainer()
    old = world.answer("old")
    world.tick(trainer)
    world.now += DAY / 2
    world.answer("new")
    world.tick(trainer)
    assert {each["msg_id"] for each in world.rows(tables.requests)} == {old, "new"}
    world.now += DAY * 0.75
    world.tick(trainer)
    assert {each["msg_id"] for each in world.rows(tables.requests)} == {"new"}
    trainer.leave()
