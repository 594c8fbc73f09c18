"""The demo's own file on Trinity with nothing but the flag, and what its runners set up and tear down."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from astune.monitor.metrics import read_metrics
from astune.support.resources import tutorial_dir

pytest.importorskip("trinity")
pytest.importorskip("tinker")

DEMO = tutorial_dir() / "math_agent" / "demo.yaml"
SHORT = (
    "astune.trainer.total_steps=2",
    "astune.trainer.tasks_per_step=2",
    "astune.rollout.num_repeat=4",
    "astune.evaluation.before=false",
    "astune.task_reader.max_validation_tasks=2",
    "astune.evaluation.decoding=[greedy]",
    "astune.monitor.progress=plain",
)
AGENT = """\
import os
from pathlib import Path

from workflow import MathAgent

LOG = Path(__file__).with_name("log.txt")


def note(word):
    with LOG.open("a") as file:
        file.write(f"{os.getpid()} {word}\\n")


class Agent(MathAgent):
    @classmethod
    async def setup(cls):
        note("setup")
        if "BROKEN" in os.environ:
            raise ConnectionError("nobody answers")
        cls.opened = True

    @classmethod
    async def teardown(cls):
        note("teardown")

    async def execute(self, task, tuner):
        assert self.opened
        note("episode")
        return await super().execute(task, tuner)
"""


def run(folder: Path, *more: str, **environment: str) -> subprocess.CompletedProcess[str]:
    (folder / "agent.py").write_text(AGENT)
    root = Path(__file__).parents[2]
    path = os.pathsep.join([str(root), str(root / "tests/trinity/stubs"), str(DEMO.parent)])
    variables = {"PYTHONPATH": path, "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1", **environment}
    command = [sys.executable, "-m", "astune", "--conf", str(DEMO), "--backbone=trinity", *SHORT, *more]
    command.append("astune.rollout.agentscope_learn_protocol=agent.py:Agent")
    return subprocess.run(command, cwd=folder, env=os.environ | variables, capture_output=True, text=True, timeout=300)


def calls(folder: Path) -> list[list[str]]:
    """What was called, in order, by each process."""
    processes: dict[str, list[str]] = {}
    for line in (folder / "log.txt").read_text().splitlines():
        process, word = line.split()
        processes.setdefault(process, []).append(word)
    return [*processes.values()]


def test_the_demos_file_trains_and_every_process_sets_up_and_tears_down_once(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    metrics = read_metrics(tmp_path / "runs/math_agent/demo/metrics.jsonl")
    assert [row["step"] for row in metrics if "reward/mean" in row] == [1, 2]
    for words in calls(tmp_path):
        assert words[0] == "setup" and words[-1] == "teardown"
        assert set(words[1:-1]) == {"episode"}


@pytest.mark.fault(
    "Runs and resuming",
    "`setup` of the workflow fails in a process of Trinity's",
    "the run ends before its first episode and names the line",
)
def test_a_setup_that_fails_ends_the_run_and_says_why(tmp_path: Path) -> None:
    done = run(tmp_path, BROKEN="1")
    assert done.returncode == 1
    said = " ".join(done.stdout.split())
    assert "ConnectionError: nobody answers" in said and "agent.py" in said
    assert {word for words in calls(tmp_path) for word in words} == {"setup"}
