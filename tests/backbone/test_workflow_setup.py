"""`setup` and `teardown` of the workflow, on every backbone of this process and wherever else a workflow is played."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from astune.cli import main

pytest.importorskip("torch")

Run = Callable[..., "Ended"]

AGENT = """\
import os
from pathlib import Path

from astune import Workflow, WorkflowOutput

LOG = Path(__file__).with_name("log.txt")


def note(word):
    with LOG.open("a") as file:
        print(word, file=file)


class Shop(Workflow):
    @classmethod
    async def setup(cls):
        note("setup")
        if os.environ.get("BROKEN") == "setup":
            raise ConnectionError("the till does not answer")
        cls.till = "open"

    @classmethod
    async def teardown(cls):
        note("teardown")
        if os.environ.get("BROKEN") == "teardown":
            raise ConnectionError("the till does not close")

    async def execute(self, task, tuner):
        assert self.till == "open"
        note("episode")
        client = tuner.openai_client("shop")
        messages = [{"role": "user", "content": task.query}]
        reply = await client.chat.completions.create(model="m", messages=messages)
        text = reply.choices[0].message.content or ""
        return WorkflowOutput(answer=text, reward=float(len(text) % 2))
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(AGENT)
    (tmp_path / "tasks.jsonl").write_text(json.dumps({"query": "What is 1 + 1?", "answer": "2"}))
    config = {
        "task_reader": {"jsonl": {"training": {"file_path": "tasks.jsonl"}}},
        "rollout": {"agentscope_learn_protocol": "shop.py:Shop", "num_repeat": 2, "max_tokens": 4},
        "trainer": {"total_steps": 1, "tasks_per_step": 1},
        "monitor": {"trackers": []},
    }
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps({"astune": config}))
    return path


@dataclass
class Ended:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def astune(job: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str, broken: str = "") -> Ended:
        monkeypatch.chdir(job.parent)
        monkeypatch.setenv("BROKEN", broken)
        code = main(arguments)
        return Ended(code, *capsys.readouterr())

    return run


def calls(job: Path) -> list[str]:
    """What was called, in order."""
    return (job.parent / "log.txt").read_text().split()


@pytest.mark.fault(
    "Runs and resuming", "`teardown` of the workflow raises", "it is said with its line; the run is kept"
)
def test_a_run_sets_up_once_and_keeps_what_it_learned_though_teardown_fails(
    job: Path, astune: Run, caplog: pytest.LogCaptureFixture
) -> None:
    done = astune("--conf", "job.yaml", broken="teardown")
    assert done.returncode == 0, done.stderr
    assert calls(job) == ["setup", "episode", "episode", "teardown"]
    assert "teardown" in caplog.text and "shop.py:" in caplog.text and "the till does not close" in caplog.text
    assert (job.parent / "runs/astune/job/checkpoints/step_000001").is_dir()


@pytest.mark.fault(
    "Runs and resuming", "`setup` of the workflow fails", "the run ends before its first episode and names the line"
)
@pytest.mark.parametrize("backbone", ["local", "debug"])
def test_a_setup_that_fails_ends_the_run_before_its_first_episode(job: Path, astune: Run, backbone: str) -> None:
    done = astune("--conf", "job.yaml", f"--backbone={backbone}", broken="setup")
    assert done.returncode == 1
    assert calls(job) == ["setup"]
    assert "Traceback" not in done.stderr
    assert "shop.py:" in done.stderr and "ConnectionError: the till does not answer" in done.stderr
    assert not [*(job.parent / "runs").rglob("config.yaml")]


def test_debug_and_replay_set_up_and_tear_down(job: Path, astune: Run) -> None:
    done = astune("--conf", "job.yaml", "--backbone=debug")
    assert done.returncode == 0, done.stderr
    assert calls(job) == ["setup", "episode", "teardown"]
    (job.parent / "log.txt").unlink()
    again = astune("replay", "runs/astune/job-debug")
    assert again.returncode == 0, again.stderr
    assert calls(job) == ["setup", "episode", "teardown"]


def test_the_doctor_tries_the_setup_and_names_the_line_that_fails(job: Path, astune: Run) -> None:
    assert "[FAIL]" not in astune("doctor", "--conf", "job.yaml", "--offline").stdout
    words = calls(job)
    assert words.count("setup") == words.count("teardown") > 0
    said = " ".join(astune("doctor", "--conf", "job.yaml", "--offline", broken="setup").stdout.split())
    assert "ConnectionError: the till does not answer" in said and "shop.py:19" in said


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("backbone", ["local", "debug"])
def test_an_interrupted_run_is_torn_down(job: Path, astune: Run, backbone: str) -> None:
    """The workflow interrupts its own process, so that nothing depends on time."""
    agent = job.with_name("shop.py")
    interrupts = f'note("episode")\n        import asyncio; os.kill(os.getpid(), {int(signal.SIGINT)})\n'
    agent.write_text(AGENT.replace('note("episode")\n', f"{interrupts}        await asyncio.sleep(60)\n"))
    astune("--conf", "job.yaml", f"--backbone={backbone}", "astune.rollout.max_concurrent=1")
    words = calls(job)
    assert words[0] == "setup" and words[-1] == "teardown"
