"""The commands of docs/trinity.md that need Trinity and no GPU, as they stand there."""

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

from astune.monitor.metrics import read_metrics

ROOT = Path(__file__).parents[2]
SHORT = (
    "astune.trainer.total_steps=2",
    "astune.trainer.tasks_per_step=2",
    "astune.trainer.warmup_steps=0",
    "astune.task_reader.max_validation_tasks=4",
)


def commands() -> list[str]:
    """The command lines of the page that run Python of the environment for Trinity without GPUs."""
    page = (ROOT / "docs" / "trinity.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```bash[^\n]*\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if ".venv-trinity/bin/python" in line]


@pytest.mark.slow
def test_the_pages_run_without_a_gpu_does_what_it_says(tmp_path: Path) -> None:
    (command,) = commands()
    variable, program, *arguments = shlex.split(command)
    assert program == ".venv-trinity/bin/python" and variable == "PYTHONPATH=tests/trinity/stubs"
    for name in ("launcher.py", "tutorial", "tests/trinity/stubs"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copy if (ROOT / name).is_file() else shutil.copytree
        copy(ROOT / name, tmp_path / name)
    done = subprocess.run(
        [sys.executable, *arguments, *SHORT],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": f"tests/trinity/stubs{os.pathsep}{ROOT}", "RAY_USAGE_STATS_ENABLED": "0"},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    run = tmp_path / "runs/math_agent/trinity_cpu"
    steps = [row["step"] for row in read_metrics(run / "metrics.jsonl") if "tokens/trained" in row]
    assert steps == [1, 2]
    for name in ("config.yaml", "report.html", "checkpoints/step_000002/trinity.json", "trinity/config.yaml"):
        assert (run / name).is_file(), name
    for name in ("global_step_2", "log/explorer.log", "log/trainer.log"):
        assert (run / "trinity/math_agent/trinity_cpu" / name).exists(), name
    assert (run / "trinity/tinker").is_dir() and (run / "trinity/tinker.log").is_file()
