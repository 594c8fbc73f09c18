"""The tutorial's commands do what its page says: a scripted walk, two steps of training, and chance."""

import re
import shlex
from pathlib import Path

import pytest

pytest.importorskip("gymnasium")

from astune.cli import main
from astune.config.load import load_config
from astune.environment import Action
from astune.environment.registry import load_environment
from astune.monitor import read_episodes
from astune.plugins import load_plugin
from astune.support.resources import tutorial_dir
from astune.types import StopReason

FOLDER = tutorial_dir() / "frozen_lake"
README = (FOLDER / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(bash|text)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
COMMANDS = [shlex.split(text.replace("\\\n", " ")) for kind, text in BLOCKS if kind == "bash"]


def run(words: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> None:
    monkeypatch.chdir(folder)
    assert words[:2] == ["python", "launcher.py"]
    assert main([*(word.replace("tutorial/frozen_lake", str(FOLDER)) for word in words[2:]), *more]) in (
        0,
        3,
    )  # 3: no signal


def test_who_knows_the_way_gets_there_and_the_page_shows_how(tmp_path, monkeypatch, capsys) -> None:
    (debug,) = (words for words in COMMANDS if "--backbone=debug" in words)
    run(debug, tmp_path, monkeypatch)
    printed = " ".join(capsys.readouterr().out.split())
    (record,) = read_episodes(tmp_path / "runs" / "frozen_lake" / "tutorial-debug" / "episodes" / "debug.jsonl")
    episode = record.episode
    assert (episode.reward, episode.error, len(episode.turns), len(episode.timelines)) == (1, None, 4, 1)
    assert episode.output.answer.startswith("You reached the goal.")
    shown = next(text for kind, text in BLOCKS if kind == "text" and "call 1" in text)
    assert [line for line in shown.splitlines() if " ".join(line.split()) not in printed] == []


def test_two_steps_of_training_through_the_service(tmp_path, monkeypatch, capsys) -> None:
    pytest.importorskip("torch")
    (train,) = (words for words in COMMANDS if words[-1].endswith("frozen_lake.yaml"))
    small = (
        "trainer.total_steps=2",
        "trainer.tasks_per_step=2",
        "rollout.num_repeat=2",
        "evaluation.decoding=[greedy]",
    )
    small += ("task_reader.max_validation_tasks=2", "monitor.check_invariants=true")
    run(train, tmp_path, monkeypatch, *(f"astune.{key}" for key in small))
    records = list(read_episodes(tmp_path / "runs" / "frozen_lake" / "tutorial" / "episodes" / "train.jsonl"))
    assert len(records) == 8
    for record in records:
        assert record.episode.stop_reason == StopReason.COMPLETED and len(record.episode.timelines) == 1
        assert record.episode.reward == record.episode.env_score


def test_the_page_says_how_often_chance_gets_there(capsys) -> None:
    load_plugin(f"{FOLDER / 'random_play.py'}:main", kind="script")()
    percent = re.match(r"random play: (.*)% of 2000 walks", capsys.readouterr().out)[1]
    assert f"| random play | {percent} % |" in README


def test_no_lake_of_training_is_held_out_and_all_are_told_in_digits() -> None:
    service = load_config(FOLDER / "frozen_lake.yaml").config.astune.task_reader.env_service
    grids = load_environment(service.serve, {**service.options, "view": "grid"})
    maps = {
        split: {told(grids, task_id) for task_id in grids.task_ids(split)[:200]} for split in ("train", "validation")
    }
    assert maps["train"] and not maps["train"] & maps["validation"]
    seen = load_environment(service.serve, service.options).create("train-0", {})
    assert re.fullmatch(r"(ice|hole) 2, (ice|hole) 3\.", seen.first_messages()[-1]["content"])
    assert "Expected" in str(seen.step(Action("down")).messages)


def told(environment, task_id: str) -> str:
    return environment.create(task_id, {}).first_messages()[-1]["content"]
