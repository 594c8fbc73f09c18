"""`astune online train`, `commit` and `status`."""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from astune.cli.online.train import add_actions
from astune.config.schema import Config
from astune.errors import ConfigError, StoreError
from astune.online.training.log import CommitLog
from astune.store.database import Database, open_database
from tests.online.training.world import World, config_of
from tests.rows import each_row


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = open_database(f"sqlite:///{tmp_path}/online.db")
    yield opened
    opened.close()


def run(*words: str) -> int:
    parser = argparse.ArgumentParser()
    add_actions(parser.add_subparsers(dest="action"))
    known = parser.parse_args(words)
    return int(known.execute(known))


def test_status_shows_what_was_made_what_waits_and_why_nothing_was_learned(
    database: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path}/online.db"
    assert run("status", "--store", url) == 0
    shown = capsys.readouterr().out
    assert "v0, as configured" in shown and "none is at work" in shown and "commits   none yet" in shown
    world = World(database, tmp_path, config_of(min_episodes=2))
    world.rate(1.0)
    assert world.commit().state == "empty"
    world.rate(0.0)
    assert world.commit().state == "made"
    world.rate(0.5)
    assert run("status", "--store", url) == 0
    shown = capsys.readouterr().out
    assert "version   v1, made" in shown and "1 counts, 2 trained" in shown and "1 episodes wait" in shown
    assert "1 are rated, and astune.online.commit.min_episodes is 2" in shown
    assert "0.500 (2)" in shown
    assert run("status", "--store", url, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["versions"][0]["number"] == 1 and found["rated"] == 1


def test_a_commit_can_be_asked_for_by_hand(
    database: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World(database, tmp_path)
    world.rate(1.0, task_id="wanted")
    world.rate(0.0, task_id="wanted")
    world.rate(0.3, task_id="another")
    assert run("commit", "--task", "wanted", "--store", f"sqlite:///{tmp_path}/online.db") == 0
    assert "commit 1 waits for the trainer" in capsys.readouterr().out
    row = world.tick(world.trainer())
    assert row is not None and (row.by, row.state) == ("hand", "made")
    assert row.figures is not None and row.figures["episodes/trained"] == 2
    assert row.figures["waiting/not_asked_for"] == 1


def test_a_store_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no store"):
        run("status", "--store", f"sqlite:///{tmp_path}/nothing.db")


def test_figures_are_logged_once_also_where_a_trainer_died_before_it_could(database: Database, tmp_path: Path) -> None:
    world = World(database, tmp_path)
    for _ in range(3):
        world.rate(1.0)
        world.rate(0.0)
        world.commit()
    for expected in ([1, 2, 3], []):
        log = CommitLog(tmp_path, database, Config())
        assert [row.number for row in log.catch_up()] == expected
        assert log.catch_up() == []
        log.close()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert all(line["made"] == 1.0 and line["reward/mean"] == 0.5 for line in lines)


@each_row(
    ("setting", "said"),
    [
        (
            "astune.backbone=debug",
            "astune.backbone: got 'debug', which trains no versions; expected 'local' or 'trinity'",
        ),
        ("astune.algorithm.trained_agents=[a]", "trained_agents: what is served is one agent"),
        ("astune.trainer.lr_schedule=linear", "online training has no end; expected 'constant'"),
        ("astune.algorithm.dynamic_sampling=2", "there are no further tasks; expected 0"),
        ("astune.algorithm.method=rft", "learns from rewards, thumbs, comparisons and corrections"),
        ("astune.online.commit.min_episodes=300", "a commit has at most max_episodes, 256"),
    ],
)
def test_what_cannot_be_trained_online_is_said_at_once(tmp_path: Path, setting: str, said: str) -> None:
    conf = tmp_path / "agent.yaml"
    conf.write_text("astune:\n  model: {path: tiny}\n")
    with pytest.raises(ConfigError) as error:
        run("train", "--conf", str(conf), setting)
    assert said in str(error.value)


def test_what_trinity_cannot_train_online_is_said_with_the_rest(tmp_path: Path) -> None:
    conf = tmp_path / "agent.yaml"
    conf.write_text("astune:\n  model: {path: tiny}\n  algorithm: {kl_beta: 0.1, dynamic_sampling: 2}\n")
    with pytest.raises(ConfigError) as error:
        run("train", "--conf", str(conf), "--backbone=trinity")
    assert "there are no further tasks" in str(error.value)
    assert "agent.yaml:3: astune.algorithm.kl_beta: got 0.1: on Trinity" in str(error.value)
