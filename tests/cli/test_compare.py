"""`astune compare`: the first prompt and a tuned one, each with the first weights and trained ones. On an engine
without a model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from astune.api.compare import FourCells
from astune.cli import main
from astune.config.load import load_config
from astune.errors import TrainingError
from astune.plugins import load_plugin
from astune.training.start import run_training
from tests.rows import each_row

TABLES = """\
held-out greedy, success, 12 tasks
                            first weights            trained weights
first prompt       0.0 % (0.0 to 26.5 %)     66.7 % (41.7 to 91.7 %)
tuned prompt     33.3 % (8.3 to 58.3 %)    100.0 % (73.5 to 100.0 %)
what it adds                          change   95 % interval         p
the prompt, with the first weights   +33.3 %   8.3 to 58.3 %     0.125
the prompt, with trained weights     +33.3 %   8.3 to 58.3 %     0.125
the weights, with the first prompt   +66.7 %   41.7 to 91.7 %    0.008
the weights, with the tuned prompt   +66.7 %   41.7 to 91.7 %    0.008
both                                +100.0 %   -             < 0.001
both, less the sum of each alone       0.0 %   -41.7 to 50.0 %  1.000
"""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration with a run of eight steps, and the texts that a search has found."""
    monkeypatch.chdir(tmp_path)
    agent = shutil.copyfile(Path(__file__).with_name("compare_agent.py"), tmp_path / "compare_agent.py")
    for name, count in (("train", 4), ("held", 12)):
        rows = [{"query": f"{name} {n}?", "answer": str(n)} for n in range(count)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    config = {
        "project_name": "p",
        "runs_dir": str(tmp_path / "runs"),
        "task_reader": {"jsonl": {"training": {"file_path": "train.jsonl"}, "validation": {"file_path": "held.jsonl"}}},
        "task_judge": {"judge_protocol": f"{agent}:judge"},
        "rollout": {
            "agentscope_learn_protocol": f"{agent}:asker",
            "num_repeat": 2,
            "max_tokens": 4,
            "max_concurrent": 1,
        },
        "trainer": {"total_steps": 8, "tasks_per_step": 2},
        "evaluation": {"before": False, "after": False, "decoding": ["greedy"]},
        "monitor": {"progress": "plain", "trackers": []},
    }
    (tmp_path / "job.yaml").write_text(json.dumps({"astune": config}))
    (tmp_path / "prompts.yaml").write_text("prompts: {system: Look twice.}")
    run_training(load_config(tmp_path / "job.yaml"), load_plugin(f"{agent}:load", kind="engine"))
    return tmp_path / "job.yaml"


def compare(job: Path, *arguments: str) -> int:
    return main(["compare", "--conf", str(job), *arguments, "--engine", f"{job.parent}/compare_agent.py:load"])


def played(job: Path) -> list[str]:
    """The episodes of the agent's module since it was asked last."""
    names: Any = load_plugin(f"{job.parent}/compare_agent.py:PLAYED", kind="list")
    found = list(names)
    names.clear()
    return found


def test_each_cell_has_its_figures_and_each_change_its_interval(
    job: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert compare(job, "--prompts", "prompts.yaml") == 0
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    start = lines.index(TABLES.splitlines()[0])
    assert [line.split() for line in lines[start : start + 11]] == [line.split() for line in TABLES.splitlines()]
    folder = job.parent / "runs" / "p" / "job-compare"
    assert "66.7 %" in (folder / "cells_greedy_success.svg").read_text(encoding="utf-8")
    found = json.loads((folder / "cells.json").read_text(encoding="utf-8"))
    assert found["figures"][0]["cells"]["tuned_prompt-trained_weights"]["mean"] == 1.0


def test_a_stopped_comparison_goes_on_and_a_finished_one_plays_nothing(job: Path) -> None:
    arguments = ("astune.prompts.from=prompts.yaml", "--checkpoint", "runs/p/job")
    played(job)
    assert compare(job, *arguments) == 0 and len(played(job)) == 48
    assert compare(job, *arguments) == 0 and played(job) == []
    third = job.parent / "runs" / "p" / "job-compare" / "first_prompt-trained_weights"
    shutil.rmtree(third.with_name("tuned_prompt-trained_weights"))
    episodes = third / "episodes" / "eval_greedy.jsonl"
    episodes.write_text("".join(episodes.read_text().splitlines(keepends=True)[:7]))  # as if it had been killed
    assert compare(job, *arguments) == 0 and len(played(job)) == 5 + 12
    (job.parent / "prompts.yaml").write_text("prompts: {system: Look again.}")  # the search has gone on
    assert compare(job, *arguments) == 0 and len(played(job)) == 24


@each_row(
    "given, said",
    [
        ((), "--prompts: name a search, as --prompts"),
        (("--prompts", "prompts.yaml", "--checkpoint", "none"), "--checkpoint none: these are the first weights"),
        (("--prompts", "prompts.yaml", "astune.experiment_name=other"), "--checkpoint: there is no trained"),
        (("--prompts", "prompts.yaml", "--figures", "sucess"), "there is no figure 'sucess'. Did you mean 'success'?"),
        (("--prompts", "prompts.yaml", "--figures", "judge/none"), "--figures: the cells have no 'judge/none' for a"),
        (("--prompts", "there.yaml"), "there.yaml: no such file"),
        (("--prompts", "prompts.yaml", "--checkpoint", "runs/p/nope"), "--checkpoint runs/p/nope: there is no such"),
        (("--prompts", "prompts.yaml", "--limit", "0"), "--limit: expected a number of tasks from 1 on, got 0"),
    ],
)
def test_what_cannot_be_compared_is_an_error(
    job: Path, capsys: pytest.CaptureFixture[str], given: tuple[str, ...], said: str
) -> None:
    assert compare(job, *given) == 2
    assert said in capsys.readouterr().err


def test_where_nothing_was_judged_there_is_no_picture(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="no task was judged in all four cells"):
        FourCells(tmp_path, {}, (), ()).plot()
