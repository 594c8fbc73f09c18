"""The commands of docs/trinity.md and of the ReAct tutorial that need Trinity and no GPU, as they stand there."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("trinity")
pytest.importorskip("tinker")
pytest.importorskip("agentscope")

from astune.monitor.episodes import read_episodes
from astune.monitor.metrics import read_metrics

ROOT = Path(__file__).parents[2]
SHORT = (
    "astune.trainer.total_steps=2",
    "astune.trainer.tasks_per_step=2",
    "astune.trainer.warmup_steps=0",
    "astune.rollout.num_repeat=4",
    "astune.task_reader.max_validation_tasks=4",
)


def command(page: str) -> list[str]:
    """The words of the one command of a page that runs Python of the environment for Trinity without GPUs."""
    blocks = re.findall(
        r"^```bash[^\n]*\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    (found,) = [shlex.split(line) for line in lines if ".venv-trinity/bin/python" in line]
    return found


def run_as_written(page: str, folder: Path) -> None:
    """The command in `folder`, as in a clone, made short."""
    variable, program, *arguments = command(page)
    assert program == ".venv-trinity/bin/python" and variable == "PYTHONPATH=tests/trinity/stubs"
    for name in ("launcher.py", "tutorial", "tests/trinity/stubs"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copy if (ROOT / name).is_file() else shutil.copytree
        copy(ROOT / name, folder / name)
    done = subprocess.run(
        [sys.executable, *arguments, *SHORT],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": f"tests/trinity/stubs{os.pathsep}{ROOT}", "RAY_USAGE_STATS_ENABLED": "0"},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def versions(run: Path) -> dict[int, set[int]]:
    """The versions of the policy that played each explored batch."""
    found: dict[int, set[int]] = {}
    for record in read_episodes(run / "episodes/train.jsonl"):
        assert record.episode.error is None
        found.setdefault(record.step, set()).update(turn.policy_version for turn in record.episode.turns)
    return found


def steps(run: Path) -> list[int]:
    return [row["step"] for row in read_metrics(run / "metrics.jsonl") if "tokens/trained" in row]


@pytest.mark.slow
def test_the_run_without_a_gpu_leaves_what_the_page_says(tmp_path: Path) -> None:
    run_as_written("docs/trinity.md", tmp_path)
    run = tmp_path / "runs/math_agent/trinity_cpu"
    assert steps(run) == [1, 2] and versions(run) == {1: {0}, 2: {1}}
    for name in ("config.yaml", "report.html", "checkpoints/step_000002/trinity.json", "trinity/config.yaml"):
        assert (run / name).is_file(), name
    for name in ("global_step_2", "log/explorer.log", "log/trainer.log"):
        assert (run / "trinity/math_agent/trinity_cpu" / name).exists(), name
    assert (run / "trinity/tinker").is_dir() and (run / "trinity/tinker.log").is_file()


@pytest.mark.slow
def test_the_react_agent_is_trained_with_dynamic_synchronisation(tmp_path: Path) -> None:
    run_as_written("tutorial/react_agent/README.md", tmp_path)
    run = tmp_path / "runs/react_agent/demo"
    assert steps(run) == [1, 2] and versions(run) == {1: {0}, 2: {0}}  # two batches before new weights
    assert any(len(record.episode.turns) > 1 for record in read_episodes(run / "episodes/train.jsonl"))
