"""Runs that are stopped, killed, resumed, or meet a full disk, on an engine without a model. Real processes are started
where signals matter."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from astune.cli import main
from astune.config.load import load_config
from astune.config.schema import AstuneConfig
from astune.errors import ConfigError, TrainingError
from astune.monitor import RunDir, read_episodes, read_metrics
from astune.testing import CountingLearner, ScriptedPolicy, script_engine
from astune.training.engine import Engine
from astune.training.start import run_training
from astune.types import Generation, RunReport, Sampling
from tests.training.killed import raise_at

ROOT = Path(__file__).parents[2]
RunJob = Callable[..., RunReport]
IMPATIENT = """
import astune.cli
from astune.rollout import time_limit
from astune.support import concurrency
astune.cli.LEAVE_SECONDS = time_limit.CANCEL_GRACE = concurrency.LEAVE_SECONDS = 0.5
astune.cli.entry()
"""
"""The command, with less time for what goes on."""


def evaluations(run: Path) -> list[tuple[int, str]]:
    rows = read_metrics(run / "metrics.jsonl")
    return [(row["step"], key.split("/")[1]) for row in rows for key in row if key.endswith("/seconds")]


def contents(run: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}


def check_folder(run: Path) -> None:
    """No checkpoint is without the records of its step."""
    logged = {row["step"] for row in read_metrics(run / "metrics.jsonl") if "episodes/total" in row}
    played = {record.step for record in read_episodes(run / "episodes" / "train.jsonl")}
    saved = {int(path.name.removeprefix("step_")) for path in RunDir(run).checkpoints()}
    assert saved <= logged <= played


@pytest.mark.fault(
    "Runs and resuming",
    "a run that is finished is resumed",
    "it says so and does nothing; more steps go on; an evaluation that was broken off is done again, once",
)
def test_a_finished_run_says_so_and_does_nothing(
    conf: Path, run_job: RunJob, capsys: pytest.CaptureFixture[str]
) -> None:
    first = run_job(conf)
    assert evaluations(first.run_dir) == [(3, "sampled"), (3, "greedy")]
    before = contents(first.run_dir)
    again = run_job(conf, resume=True)
    assert (again.status, again.steps) == ("completed", 3)
    assert "is finished: all of its 3 steps are done" in " ".join(capsys.readouterr().out.split())
    assert contents(first.run_dir) == before
    kept = (first.run_dir / "metrics.jsonl").read_text().splitlines()
    assert "greedy" in kept[-1]
    (first.run_dir / "metrics.jsonl").write_text("".join(line + "\n" for line in kept[:-1]))
    run_job(conf, resume=True)
    assert evaluations(first.run_dir) == [(3, "sampled"), (3, "greedy")]
    held = list(read_episodes(first.run_dir / "episodes" / "eval_greedy.jsonl"))
    assert len(held) == 1
    assert run_job(conf, "astune.trainer.total_steps=4", resume=True).steps == 4
    check_folder(first.run_dir)


@pytest.mark.fault(
    "Records and checkpoints",
    "anything at all goes wrong while a step is recorded",
    "no checkpoint is written without its episodes and figures",
)
def test_no_checkpoint_is_there_without_its_records(
    conf: Path, run_job: RunJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug after an update; kills and full disks at any place are in `test_any_order.py`."""
    with monkeypatch.context() as patch:
        raise_at(patch, 3, CountingLearner, "publish", ZeroDivisionError("bug"))  # a run begins with a publish
        assert run_job(conf).status == "failed"
    run = conf.parent / "runs" / "test" / "job"
    check_folder(run)
    assert run_job(conf, resume=True).steps == 3
    check_folder(run)


@pytest.mark.fault(
    "Runs and resuming",
    "a run gets SIGTERM or SIGHUP while a task swallows its cancellation and a thread never ends",
    "the steps done are saved, the report is written, and the process ends with 130",
)
def test_a_signal_saves_and_reports_and_ends_the_process(conf: Path) -> None:
    command = [sys.executable, "-c", IMPATIENT, "--conf", str(conf)]
    command += [
        "astune.trainer.save_every=0",
        f"astune.rollout.agentscope_learn_protocol={conf.parent}/agents.py:stubborn",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        command, cwd=conf.parent, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and not (conf.parent / "waiting").exists():
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGHUP)  # systems send several
    output, _ = process.communicate(timeout=120)
    run = conf.parent / "runs" / "test" / "job"
    assert process.returncode == 130, output
    assert "interrupted after step 1" in output
    assert RunDir(run).latest_checkpoint() == RunDir(run).checkpoint_path(1)
    assert (run / "report.html").is_file()
    check_folder(run)


@pytest.mark.fault("Runs and resuming", "Ctrl-C", "a checkpoint is saved, and the command that goes on is printed")
@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_ctrl_c_saves_and_the_run_can_go_on(conf: Path, run_job: RunJob) -> None:
    command = [sys.executable, str(ROOT / "launcher.py"), "--conf", str(conf), "astune.trainer.total_steps=100000"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ)
    metrics = conf.with_name("runs") / "test" / "job" / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (metrics.exists() and "reward/mean" in metrics.read_text()):
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "--resume" in output
    done = max(row["step"] for row in read_metrics(metrics))
    resumed = run_job(conf, f"astune.trainer.total_steps={done + 1}", resume=True)
    assert resumed.steps == done + 1


@pytest.mark.fault(
    "Runs and resuming",
    "a part of the engine that runs elsewhere dies while episodes wait for it",
    "the run says which and ends at once; the steps done are saved, and it can go on",
)
def test_a_run_whose_engine_lost_a_part_ends_with_the_reason(
    conf: Path, run_job: RunJob, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = script_engine(lambda prompt: "4")
    closed = []

    def load(config: AstuneConfig) -> Engine:
        engine = whole(config)
        died = asyncio.Event()

        class Dying(ScriptedPolicy):
            """Answers no more after the first step."""

            async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
                if engine.learner.updates:
                    died.set()
                    await asyncio.Event().wait()
                return await engine.policy.generate(prompt_ids, sampling)

        async def lost() -> TrainingError:
            await died.wait()
            return TrainingError("server 1 died")

        policy = Dying(lambda prompt: "4", engine.chat_format)
        return replace(engine, policy=policy, lost=lost, close=lambda: closed.append(1))

    report = run_training(load_config(conf, ["astune.trainer.save_every=0"]), load)
    assert (report.status, report.steps, report.error, closed) == ("failed", 1, None, [1])
    assert "stopped: server 1 died" in capsys.readouterr().out
    assert RunDir(report.run_dir).latest_checkpoint() == RunDir(report.run_dir).checkpoint_path(1)
    assert run_job(conf, "astune.trainer.save_every=0", resume=True).steps == 3
    check_folder(report.run_dir)


def test_a_step_that_is_done_is_saved_after_some_minutes(conf: Path, run_job: RunJob) -> None:
    settings = ("astune.trainer.save_every=0", "astune.evaluation.after=false", "astune.trainer.total_steps=2")
    names = [path.name for path in RunDir(run_job(conf, *settings).run_dir).checkpoints()]
    assert names == ["step_000002"]
    names = [
        path.name for path in RunDir(run_job(conf, *settings, "astune.trainer.save_minutes=1e-9").run_dir).checkpoints()
    ]
    assert names == ["step_000001", "step_000002"]


def test_changed_options_are_refused_on_the_command_line(
    conf: Path, run_job: RunJob, capsys: pytest.CaptureFixture[str]
) -> None:
    run_job(conf, "astune.trainer.total_steps=1", "astune.evaluation.after=false")
    changed = ["--conf", str(conf), "--resume", "astune.seed=7", "astune.evaluation.after=false"]
    assert main(changed) == 2
    assert "astune.seed: 42 before, 7 now" in capsys.readouterr().err
    assert main([*changed, "--allow-changes"]) == 0
    with pytest.raises(SystemExit):
        main(["--conf", str(conf), "--allow-changes"])


def test_two_runs_started_at_once_have_folders_of_their_own(conf: Path, run_job: RunJob) -> None:
    loaded = load_config(conf)
    with RunDir.open(loaded.config, resume=False) as first, RunDir.open(loaded.config, resume=False) as second:
        assert (first.path.name, second.path.name) == ("job", "job-2")
        with first.save_checkpoint(1) as folder:
            (folder / "weights").write_text("")
        with second.save_checkpoint(1) as folder:
            (folder / "weights").write_text("")
        with pytest.raises(ConfigError, match="is in use by process"):
            run_job(conf, resume=True)
