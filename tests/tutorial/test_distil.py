"""The tutorial's commands in small: a teacher is exported, and the student comes nearer to it."""

from pathlib import Path

import pytest

pytest.importorskip("agentscope")
pytest.importorskip("torch")

from astune.monitor import read_metrics
from astune.support.resources import tutorial_dir
from tests.tutorial.small import SMALL, commands, run

FOLDER = tutorial_dir() / "distil"
CONVERSATIONS = tutorial_dir() / "sft_then_grpo" / "conversations.jsonl"


def test_a_student_halves_its_distance_to_the_teacher_on_its_own_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    teach, export, learn = commands(FOLDER / "README.md")
    without = ("evaluation.before=false", "evaluation.after=false")
    assert run(learn, *SMALL, *without) == 2
    assert "astune.algorithm.teacher: there is no folder 'my_teacher'" in capsys.readouterr().err
    # a teacher that learned from the examples alone, in a moment
    taught = ["stages=[]", "algorithm.method=sft", f"trainer.examples={CONVERSATIONS}", "trainer.total_steps=12"]
    assert run(teach, *SMALL, *without, *taught, "trainer.learning_rate=1e-3") == 0
    assert run(export) == 0
    small = ("rollout.num_repeat=2", "trainer.total_steps=8", "trainer.warmup_steps=0")
    assert run(learn, *SMALL, *without, *small) == 0
    metrics = read_metrics(tmp_path / "runs" / "distil" / "distil" / "metrics.jsonl")
    distances = [row["kl/teacher"] for row in metrics if "kl/teacher" in row]
    assert len(distances) == 8 and min(distances) > 0
    assert sum(distances[-2:]) < 0.5 * sum(distances[:2])
