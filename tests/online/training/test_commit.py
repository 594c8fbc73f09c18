import json
import random
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from astune.errors import RunFolderError
from astune.online.training.trainer import Trainer
from astune.store import retention, tables, versions
from astune.store.commits import Wanted
from astune.store.database import Database, open_database
from astune.store.feedback.states import Said
from astune.store.retention import DAY, Whose
from astune.testing.engine import STATE_FILE
from tests.online.training.world import World, config_of
from tests.store.databases import database as database
from tests.store.databases import url as url


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Database]:
    opened = open_database(f"sqlite:///{tmp_path}/store.db")
    yield opened
    opened.close()


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


def test_corrections_comparisons_and_thumbs_are_learned_beside_rewards(sqlite: Database, tmp_path: Path) -> None:
    world = World(sqlite, tmp_path, config_of(weight_thumbs=0.5))
    world.rate(1.0)
    world.rate(0.0)
    for liked in (1.0, 0.0):
        world.say(Said("thumb", value=liked), about=[world.answer(f"thumb-{liked}")])
    world.say(Said("correction", correction="It is 5."), about=[world.answer("wrong")])
    better, worse = world.answer("better"), world.answer("worse")
    world.say(Said("preference"), better=better, worse=worse)
    row = world.commit()
    assert row.state == "made" and row.figures is not None
    learned = world.rows(tables.samples)
    assert sorted(each["method"] for each in learned) == ["dpo", "dpo", "kto", "kto", "policy", "policy", "sft"]
    by_method = {(each["method"], each["advantage"] > 0): each for each in learned}
    assert by_method["dpo", True]["weight"] == pytest.approx(0.5)
    assert by_method["sft", True]["turn_id"] is None
    assert row.figures["episodes/trained"] == 6.0


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


@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_judged_together_no_turn_is_trained_twice(sqlite: Database, tmp_path: Path, seed: int) -> None:
    """Feedback on parts of conversations that overlap, before and after the commits that train them."""
    draw = random.Random(seed)
    world = World(sqlite, tmp_path)
    trainer = world.trainer()
    said: list[str] = []
    for _ in range(6):
        conversation, before = f"c{world.now:g}", None
        for _ in range(draw.randint(1, 4)):
            msg_id = f"m{world.now:g}"
            exchange = said[-1] if before is not None and draw.random() < 0.3 else msg_id
            before = world.answer(msg_id, conversation=conversation, follows=before, exchange=exchange)
            said.append(msg_id)
        for _ in range(draw.randint(1, 4)):
            about = draw.sample(said, min(len(said), draw.randint(1, 3)))
            world.say(draw.choice([0.0, 0.5, 1.0]), about=about, author=f"u{draw.randint(0, 3)}")
        assert world.commit(trainer).state in ("made", "empty")
    trained = Counter(row["turn_id"] for row in world.rows(tables.samples))
    assert trained and set(trained.values()) == {1}


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
            done = retention.delete(database, Whose(conversation=f"c-{first}"), role="command", now=world.now)
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
