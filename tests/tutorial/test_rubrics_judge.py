"""The tutorial's rubric is what its examples give, and its agent is judged by it."""

import io
import runpy
import shutil
from importlib import metadata, util
from pathlib import Path

import pytest

from astune.cli import main
from astune.config.load import load_config
from astune.monitor import read_episodes
from astune.support.resources import tutorial_dir
from astune.support.terminal import Console
from astune.task_judge.llm.rubric import load_rubric

FOLDER = tutorial_dir() / "rubrics_judge"
needs_an_agent = pytest.mark.skipif(
    any(util.find_spec(name) is None for name in ("agentscope", "torch")) or metadata.version("agentscope")[0] != "2",
    reason="the agent is for AgentScope 2.x, and its model for torch",
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A copy of the tutorial without the rubric, beside a server that plays the language model."""
    copy = tmp_path / "rubrics_judge"
    shutil.copytree(FOLDER, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(tmp_path)
    with runpy.run_path(str(FOLDER / "judge_server.py"))["WORLD"].server() as server:
        monkeypatch.setenv("JUDGE_URL", server.base_url)
        yield copy


def test_the_rubric_that_ships_is_the_one_that_is_learned(folder, capsys):
    shipped = load_rubric(folder / "learned.yaml")
    (folder / "learned.yaml").unlink()
    assert main(["rubrics", "--conf", str(folder / "rubrics.yaml")]) == 0
    learned = load_rubric(folder / "learned.yaml")
    assert (learned.criteria, learned.report) == (shipped.criteria, shipped.report)
    written = capsys.readouterr().out
    assert "judge without rubric" in written and "10 test examples say little" in written


def test_the_page_has_the_figures_of_the_report():
    report = load_rubric(FOLDER / "learned.yaml").report
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    parts = {"rubric": report["test"], **{name.replace("_", " "): one for name, one in report["baselines"].items()}}
    for name, title in {"rubric": "rubric", "without rubric": "judge without rubric", "majority": "majority"}.items():
        figures = [f"{parts[name][key]:.0%}".replace("%", " %") for key in ("accuracy", "low", "high")]
        assert f"| {title} | {figures[0]} | {figures[1]} to {figures[2]} |" in page


@needs_an_agent
def test_the_debugger_shows_the_verdict_by_the_rubric(folder):
    from astune.backbone.debug import DebugBackbone

    console = Console(file=io.StringIO(), width=140)
    report = DebugBackbone(console).run(load_config(folder / "train.yaml", backbone="debug"))
    verdicts = [record.episode.verdict for record in read_episodes(report.run_dir / "episodes" / "debug.jsonl")]
    criteria = {criterion.id for criterion in load_rubric(folder / "learned.yaml").criteria}
    assert len(verdicts) == 2 and all(criteria <= set(verdict.metrics) for verdict in verdicts)


@needs_an_agent
def test_it_trains_on_the_verdicts(folder):
    small = ["astune.trainer.total_steps=1", "astune.rollout.num_repeat=2", "astune.rollout.max_tokens=16"]
    assert main(["--conf", str(folder / "train.yaml"), *small]) in (0, 3)  # 3: no signal in a step
    records = list(read_episodes(folder.parent / "runs" / "rubrics_judge" / "train" / "episodes" / "train.jsonl"))
    assert len(records) == 4 and all(record.episode.reward is not None for record in records)
