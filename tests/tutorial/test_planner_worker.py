"""A planner and a worker, a model each, and one model that is both."""

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("peft")
pytest.importorskip("agentscope.credential")  # AgentScope 2.x

from astune.monitor.episodes import read_episodes
from astune.support.resources import tutorial_dir
from tests.tutorial.small import commands, run

PAGE = tutorial_dir() / "planner_worker" / "README.md"
SMALL = ("trainer.total_steps=1", "trainer.tasks_per_step=4", "trainer.warmup_steps=0", "rollout.num_repeat=4")
SMALL += ("evaluation.before=false", "evaluation.after=false", "monitor.check_invariants=true")


def test_each_command_of_the_page_takes_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    heard = {}
    for words in commands(PAGE):
        assert run(words, *SMALL) in (0, 3)
        (made,) = (tmp_path / "runs" / "planner_worker").iterdir()
        records = read_episodes(made / "episodes" / "train.jsonl")
        heard[made.name] = {(turn.agent, turn.model) for each in records for turn in each.episode.turns}
        made.rename(tmp_path / made.name)
    assert heard == {
        "team": {("planner", "planner"), ("worker", "worker")},
        "one": {("planner", "worker"), ("worker", "worker")},
    }
    saved = tmp_path / "team" / "checkpoints" / "step_000001"
    assert {"planner", "worker"} <= {path.name for path in saved.iterdir()}
