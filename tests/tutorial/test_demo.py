"""The demo and its GSM8K sibling, run as a user runs them, on whichever AgentScope is installed."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from astune.cli import main
from astune.monitor.episodes import read_episodes
from astune.monitor.metrics import read_metrics

pytest.importorskip("agentscope")
pytest.importorskip("torch")

TUTORIAL = Path(__file__).parents[2] / "tutorial" / "math_agent"
GSM8K = Path(__file__).parents[3] / "shared" / "data" / "gsm8k" / "train_1000.jsonl"
WORKFLOW = "workflow_agentscope1.py" if metadata.version("agentscope").startswith("1.") else "workflow.py"


def run(tmp_path: Path, conf: str, *overrides: str) -> tuple[int, Path, list[dict[str, Any]]]:
    """The exit code of a run of `conf`, its folder and its metrics."""
    common = [
        f"astune.runs_dir={tmp_path}",
        f"astune.rollout.agentscope_learn_protocol={TUTORIAL / WORKFLOW}:MathAgent",
        "astune.experiment_name=run",
        "astune.monitor.progress=off",
    ]
    code = main(["--conf", str(TUTORIAL / conf), *common, *overrides])
    folder = tmp_path / "math_agent" / "run"
    assert "Held-out" in (folder / "report.html").read_text()
    return code, folder, read_metrics(folder / "metrics.jsonl")


@pytest.mark.slow
def test_the_demos_agent_gets_better(tmp_path: Path) -> None:
    overrides = [
        "trainer.total_steps=4",
        "task_reader.max_validation_tasks=40",
        "evaluation.decoding=[greedy]",
        "evaluation.every=0",
    ]
    code, folder, rows = run(tmp_path, "demo.yaml", *(f"astune.{override}" for override in overrides))
    success = [row["success/mean"] for row in rows if "success/mean" in row]
    held_out = [row["eval/greedy/success"] for row in rows if "eval/greedy/success" in row]
    assert code == 0 and len(success) == 4 and len(held_out) == 2
    assert held_out[0] <= 0.5 and held_out[1] > held_out[0] + 0.15
    assert all(row["kl/sampler"] < 1e-5 for row in rows if "kl/sampler" in row)  # trained is what was sampled
    episodes = [record.episode for record in read_episodes(folder / "episodes" / "train.jsonl")]
    assert any(turn.response.get("tool_calls") for episode in episodes for turn in episode.turns)
    assert sum(len(episode.timelines) == 1 for episode in episodes) / len(episodes) > 0.99


@pytest.mark.skipif(not GSM8K.exists(), reason="GSM8K is not there")
def test_the_same_agent_runs_on_gsm8k(tmp_path: Path) -> None:
    reader = ("type=jsonl", f"jsonl.training.file_path={GSM8K}", "validation_fraction=0.1", "max_validation_tasks=8")
    overrides = [f"task_reader.{key}" for key in reader]
    overrides += ["trainer.total_steps=1"]
    code, _, rows = run(tmp_path, "gsm8k.yaml", *(f"astune.{override}" for override in overrides))
    (step,) = [row for row in rows if "episodes/total" in row]
    assert step["episodes/total"] == 128 and step["episodes/failed"] == 0
    assert code == (0 if step["groups/used"] else 3)  # from none solved nothing is learned
