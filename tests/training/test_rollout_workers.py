"""Episodes that are played in processes beside the engine's, on an engine without a model."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from astune.backbone.base import check_keys
from astune.backbone.debug import DebugBackbone
from astune.config.load import load_config
from astune.errors import SetupError
from astune.monitor.episodes import read_episodes
from astune.monitor.metrics import read_metrics
from astune.training.rollout_workers import pool
from astune.types import Episode, RunReport, StopReason

AGENTS = Path(__file__).with_name("worker_agents.py")
TIMES = ("time", "throughput", "seconds", "blocked")
SHORT = (
    "astune.trainer.total_steps=1",
    "astune.task_reader.shuffle=false",
    "astune.evaluation.after=false",
    "astune.rollout.max_tokens=16",
)
RunJob = Callable[..., RunReport]


def plays(workflow: str, workers: int, *others: str) -> list[str]:
    protocol = f"astune.rollout.agentscope_learn_protocol={AGENTS}:{workflow}"
    return [*SHORT, protocol, f"astune.rollout.workers={workers}", *others]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ASTUNE_TEST_FOLDER", str(tmp_path))
    return tmp_path


def timeless(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if not any(part in key.split("/") for part in TIMES)}


def episodes_of(report: RunReport, phase: str = "train") -> list[Episode]:
    """The run's episodes, without their times."""
    records = read_episodes(report.run_dir / "episodes" / f"{phase}.jsonl")
    return [replace(each.episode, metrics=timeless(dict(each.episode.metrics))) for each in records]


def figures_of(report: RunReport) -> list[dict[str, Any]]:
    return [timeless(row) for row in read_metrics(report.run_dir / "metrics.jsonl")]


def test_workers_play_the_episodes_that_are_played_without(conf: Path, run_job: RunJob) -> None:
    more = ("astune.rollout.max_concurrent=4", "astune.evaluation.after=true", "astune.monitor.check_invariants=true")
    runs = [run_job(conf, *plays("talks", n, *more, f"astune.experiment_name=w{n}")) for n in (0, 2)]
    assert {run.status for run in runs} == {"completed"}
    alone, beside = runs
    assert episodes_of(beside) == episodes_of(alone)
    assert episodes_of(beside, "eval_sampled") == episodes_of(alone, "eval_sampled")
    assert figures_of(beside) == figures_of(alone)
    assert [len(episode.turns) for episode in episodes_of(alone)] == [1, 2, 3, 1, 2, 3]


def test_workers_do_without_torch(conf: Path, run_job: RunJob) -> None:
    assert [episode.reward for episode in episodes_of(run_job(conf, *plays("sees_torch", 1)))] == [0.0] * 6


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
def test_workers_give_each_episode_a_sandbox_of_its_own(conf: Path, run_job: RunJob) -> None:
    pytest.importorskip("agentscope", minversion="2.0")
    report = run_job(conf, *plays("acts", 1, "astune.rollout.workspace.type=AstuneSandbox"))
    episodes = episodes_of(report)
    assert [(each.stop_reason, each.reward) for each in episodes] == [(StopReason.COMPLETED, 1.0)] * 6
    assert str(os.getpid()) not in {each.output.answer for each in episodes if each.output}


@pytest.mark.fault(
    "Runs and resuming",
    "a process that plays episodes dies (`astune.rollout.workers`)",
    "another takes its place and plays its episodes again, once, which are counted; the next time they have failed",
)
def test_the_episodes_of_a_worker_that_died_are_played_again(
    conf: Path, run_job: RunJob, caplog: pytest.LogCaptureFixture
) -> None:
    alone = run_job(conf, *plays("talks", 0, "astune.experiment_name=alone"))
    report = run_job(conf, *plays("dies_once", 2))
    again = {episode.episode_id for episode in episodes_of(report) if episode.metrics.get("played_again")}
    assert any(name.endswith("/1") for name in again)
    assert figures_of(report)[0]["episodes/played_again"] == len(again)
    assert "was lost: signal SIGKILL; its episodes are played again" in caplog.text
    sampled = [[turn.output_ids for turn in episode.turns] for episode in episodes_of(report)]
    assert sampled == [[turn.output_ids for turn in episode.turns] for episode in episodes_of(alone)]


@pytest.mark.fault(
    "Runs and resuming",
    "a process that plays episodes dies (`astune.rollout.workers`)",
    "another takes its place and plays its episodes again, once, which are counted; the next time they have failed",
)
def test_an_episode_whose_workers_die_fails_alone(conf: Path, run_job: RunJob, folder: Path) -> None:
    report = run_job(conf, *plays("dies", 1, "astune.rollout.max_concurrent=1"))
    failed = [episode for episode in episodes_of(report) if episode.stop_reason is StopReason.ERROR]
    assert [(episode.task.query, episode.episode_id[-2:]) for episode in failed] == [("1?", "/1")]
    assert failed[0].error is not None and failed[0].error.kind == "WorkerDied"
    assert "signal SIGKILL" in failed[0].error.message
    assert (folder / "deaths").read_text() == "++"


@pytest.mark.fault(
    "Runs and resuming",
    "processes that play episodes die one after another, and no episode ends",
    "the run ends with the reason; what was trained is saved",
)
def test_workers_that_only_die_end_the_run(
    conf: Path, run_job: RunJob, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pool, "MOST_LOST", 1)  # of each
    report = run_job(conf, *plays("all_die", 2, "astune.rollout.max_concurrent=1"))
    assert report.status == "failed"
    said = " ".join(capsys.readouterr().out.split())
    assert "2 workers of astune.rollout.workers were lost one after another" in said


def test_setup_and_teardown_run_in_every_worker(conf: Path, run_job: RunJob, folder: Path) -> None:
    report = run_job(conf, *plays("Opened", 2))
    assert [episode.reward for episode in episodes_of(report)] == [1.0] * 6
    opened = {path.name.partition("-")[2] for path in folder.glob("setup-*")}
    assert opened == {path.name.partition("-")[2] for path in folder.glob("teardown-*")}
    assert len(opened) == 2 and str(os.getpid()) not in opened


@pytest.mark.parametrize("workflow", ["BadSetup", "nowhere"])
def test_a_workflow_that_cannot_be_set_up_in_a_worker_begins_no_run(
    conf: Path, run_job: RunJob, workflow: str, folder: Path
) -> None:
    if workflow == "nowhere":  # it loads here and not there
        agents = folder / "moody.py"
        agents.write_text(
            "import os\nif os.environ['FIRST'] != str(os.getpid()): raise OSError('not here')\n"
            "async def nowhere(task, tuner): ...\n"
        )
        os.environ["FIRST"] = str(os.getpid())
        change = f"astune.rollout.agentscope_learn_protocol={agents}:nowhere"
    else:
        change = "astune.seed=1"
    with pytest.raises(SetupError, match=r"no connection to the warehouse|not here"):
        run_job(conf, *plays("BadSetup", 1, change))
    assert not list((folder / "runs").rglob("metrics.jsonl"))


@pytest.mark.fault(
    "Agents and the engine",
    "a workflow returns an answer that cannot be sent to the judge's process (`astune.rollout.workers`)",
    "the episode fails with an error that says so",
)
def test_answers_reach_the_judge_in_the_process_of_the_run(conf: Path, run_job: RunJob) -> None:
    report = run_job(conf, *plays("gives_object", 1, f"astune.task_judge.judge_protocol={AGENTS}:JudgeOfObjects"))
    for episode in episodes_of(report):
        if episode.episode_id.endswith("/0"):
            assert episode.error is not None and "AnswerWithLock, cannot be sent" in episode.error.message
            assert len(episode.turns) == 1
        else:
            assert episode.verdict is not None
            assert (episode.verdict.reward, episode.verdict.reason) == (4.0, str(os.getpid()))


def test_a_group_is_judged_at_once_wherever_it_was_played(conf: Path, run_job: RunJob) -> None:
    report = run_job(conf, *plays("without_reward", 1, f"astune.task_judge.judge_protocol={AGENTS}:JudgeOfGroups"))
    verdicts = [episode.verdict for episode in episodes_of(report)]
    assert [(each.reward, each.reason) for each in verdicts if each] == [(3.0, str(os.getpid()))] * 6


def test_time_limits_hold_in_workers(conf: Path, run_job: RunJob) -> None:
    report = run_job(conf, *plays("endless", 1, "astune.rollout.episode_timeout=4.0"))
    stops = [episode.stop_reason for episode in episodes_of(report)]
    assert stops == [StopReason.COMPLETED, StopReason.TIMEOUT, StopReason.COMPLETED] * 2


def test_what_agents_print_and_log_comes_out_here(
    conf: Path, run_job: RunJob, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    report = run_job(conf, *plays("says_things", 2))
    printed = capsys.readouterr().out
    assert printed.count("and the last line has no end\n") == 2
    for episode in episodes_of(report):
        assert f"printed by {episode.episode_id}\n" in printed
        assert f"logged by {episode.episode_id}" in caplog.messages


@pytest.mark.fault(
    "Runs and resuming",
    "a run is killed while processes beside it play episodes (`astune.rollout.workers`)",
    "the processes end, whatever the agents are at",
)
def test_workers_end_with_a_run_that_is_killed(conf: Path, folder: Path) -> None:
    with run_until_met(conf, folder, "holds_on", 1) as (run, (connection,)):
        run.send_signal(signal.SIGKILL)
        assert connection.recv(99) == b""  # nobody holds the other end any more


def test_ctrl_c_stops_the_episodes_of_workers(conf: Path, folder: Path) -> None:
    with run_until_met(conf, folder, "waits", 6) as (run, connections):
        run.send_signal(signal.SIGINT)
        assert [connection.recv(99) for connection in connections] == [b"stopped"] * 6
        assert [connection.recv(99) for connection in connections] == [b""] * 6
    assert run.returncode == 130


@contextmanager
def run_until_met(
    conf: Path, folder: Path, workflow: str, times: int
) -> Iterator[tuple[subprocess.Popen[bytes], list[socket.socket]]]:
    """A run in a process, once so many of its agents have connected. It has ended when the block is left."""
    with socket.socket(socket.AF_UNIX) as server:
        server.settimeout(100)
        server.bind(str(folder / "socket"))
        server.listen(times)
        command = [sys.executable, "-m", "astune", "run", "--conf", str(conf), *plays(workflow, 1)]
        with subprocess.Popen(command, cwd=folder) as run, ExitStack() as stack:
            yield run, [stack.enter_context(server.accept()[0]) for _ in range(times)]


def test_the_debugger_plays_in_its_own_process(conf: Path) -> None:
    assert "astune.rollout.workers" in check_keys(DebugBackbone(), load_config(conf, ["astune.rollout.workers=2"]))
