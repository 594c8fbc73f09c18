"""Runs that are stopped, killed, resumed, or meet a full disk. A model call takes milliseconds; real processes are
started where signals matter."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from astune.backbone.local import LocalBackbone
from astune.backbone.local.model import read_weights
from astune.cli import main
from astune.config.load import load_config
from astune.errors import ConfigError, ModelError, RunFolderError
from astune.monitor import RunDir, read_episodes, read_metrics
from astune.support.resources import tiny_model_dir
from astune.support.signals import on_ctrl_c, signals_as_ctrl_c
from astune.types import RunReport

ROOT = Path(__file__).parents[3]
AGENT = """
import asyncio, os, random, time
from astune import WorkflowOutput

async def quick(task, tuner):
    ask = [{"role": "user", "content": task.query}]
    await tuner.openai_client().chat.completions.create(model="m", messages=ask)
    if task.metadata.get("moves"):
        os.chdir("/")
    return WorkflowOutput(answer="4", reward=float(tuner.episode_id[-1] in "02"))

async def stubborn(task, tuner):
    if tuner.episode_id.startswith("train/2/"):
        open(os.path.join(os.path.dirname(__file__), "waiting"), "w").close()
        asyncio.get_running_loop().run_in_executor(None, time.sleep, 600)
        while True:
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                pass
    return await quick(task, tuner)
"""


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    (tmp_path / "agent.py").write_text(AGENT)
    rows = [{"query": f"{n}?", "answer": "4", "moves": True} for n in range(4)]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "held.jsonl").write_text('{"query": "8 - 4?", "answer": "4"}')
    config = {
        "project_name": "test",
        "runs_dir": str(tmp_path / "runs"),
        "task_reader": {"jsonl": {"training": {"file_path": "train.jsonl"}, "validation": {"file_path": "held.jsonl"}}},
        "rollout": {"agentscope_learn_protocol": "agent.py:quick", "num_repeat": 3, "max_tokens": 4},
        "trainer": {"total_steps": 3, "tasks_per_step": 1, "keep_checkpoints": 9, "save_every": 1},
        "evaluation": {"before": False},
        "monitor": {"progress": "plain", "tensorboard": False},
    }
    (tmp_path / "job.yaml").write_text(json.dumps({"astune": config}))
    return tmp_path / "job.yaml"


@pytest.fixture(autouse=True)
def _stays_here() -> Any:
    here = Path.cwd()
    yield
    os.chdir(here)


def run_job(conf: Path, *overrides: str, resume: bool = False) -> RunReport:
    return LocalBackbone().run(load_config(conf, overrides, resume=resume))


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
def test_a_finished_run_says_so_and_does_nothing(conf: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


class Killed(BaseException):
    pass


@pytest.mark.fault(
    "Records and checkpoints",
    "anything at all goes wrong while a step is recorded",
    "no checkpoint is written without its episodes and figures",
)
@pytest.mark.parametrize(
    ("place", "error"),
    [("publish", ZeroDivisionError("bug")), ("log", RunFolderError("full")), ("log", Killed())],
    ids=["a bug after the update", "a full disk", "a kill before the figures are written"],
)
def test_no_checkpoint_is_there_without_its_records(
    conf: Path, monkeypatch: pytest.MonkeyPatch, place: str, error: BaseException
) -> None:
    calls = []

    def fails(*_: object, **__: object) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise error
        return original(*_, **__)  # type: ignore[no-any-return]

    owner, name = {
        "publish": ("astune.backbone.local.learner.LocalLearner", "publish"),
        "log": ("astune.monitor.metrics.MetricsLog", "log"),
    }[place]
    module, _, cls = owner.rpartition(".")
    holder = getattr(sys.modules[module], cls)
    original = getattr(holder, name)
    with monkeypatch.context() as patch:
        patch.setattr(f"{owner}.{name}", fails)
        if isinstance(error, Killed):
            with pytest.raises(Killed):
                run_job(conf)
        else:
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
    command = [sys.executable, str(ROOT / "launcher.py"), "--conf", str(conf), "astune.trainer.save_every=0"]
    command += [f"astune.rollout.agentscope_learn_protocol={conf.parent}/agent.py:stubborn"]
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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=["SIGTERM", "SIGHUP"])
def test_the_first_signal_counts_as_ctrl_c_and_nohup_is_heeded(number: int) -> None:
    heard: list[int] = []
    with on_ctrl_c(lambda: heard.append(1)), signals_as_ctrl_c():
        signal.raise_signal(number)
        signal.raise_signal(signal.SIGTERM)
    assert heard == [1]
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with on_ctrl_c(lambda: heard.append(2)), signals_as_ctrl_c():
            signal.raise_signal(number)
    finally:
        signal.signal(number, before)
    assert heard == [1]


@pytest.mark.fault(
    "Runs and resuming", "a script starts a run with `&`, and later sends SIGTERM", "it ends as by Ctrl-C at any time"
)
def test_sigterm_is_heard_where_ctrl_c_was_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with pytest.raises(KeyboardInterrupt), signals_as_ctrl_c():
            signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_step_that_is_done_is_saved_after_some_minutes(conf: Path) -> None:
    settings = ("astune.trainer.save_every=0", "astune.evaluation.after=false", "astune.trainer.total_steps=2")
    names = [path.name for path in RunDir(run_job(conf, *settings).run_dir).checkpoints()]
    assert names == ["step_000002"]
    names = [
        path.name for path in RunDir(run_job(conf, *settings, "astune.trainer.save_minutes=1e-9").run_dir).checkpoints()
    ]
    assert names == ["step_000001", "step_000002"]


def test_changed_options_are_refused_on_the_command_line(conf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_job(conf, "astune.trainer.total_steps=1", "astune.evaluation.after=false")
    changed = ["--conf", str(conf), "--resume", "astune.seed=7", "astune.evaluation.after=false"]
    assert main(changed) == 2
    assert "astune.seed: 42 before, 7 now" in capsys.readouterr().err
    assert main([*changed, "--allow-changes"]) == 0
    with pytest.raises(SystemExit):
        main(["--conf", str(conf), "--allow-changes"])


@pytest.mark.fault(
    "Records and checkpoints",
    "the files of a model lack a tensor, have one too many or one of another shape",
    "the model is refused, and the tensors are named",
)
@pytest.mark.parametrize("change", ["lack", "have too much", "have in another shape"])
def test_weights_that_are_not_the_models_are_refused(tmp_path: Path, change: str) -> None:
    import shutil

    import torch
    from safetensors.torch import load_file, save_file

    folder = shutil.copytree(tiny_model_dir(), tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    name = "model.layers.0.input_layernorm.weight"
    if change == "lack":
        del weights[name]
    else:
        name = name if change == "have in another shape" else "model.more"
        weights[name] = torch.zeros(3)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=rf"{change} {name}"):
        read_weights(folder)


def test_a_checkpoint_of_an_older_version_that_is_broken_is_named(conf: Path) -> None:
    run = RunDir(run_job(conf, "astune.trainer.total_steps=2", "astune.evaluation.after=false").run_dir)
    newest = run.checkpoint_path(2)
    (newest / "COMPLETE").write_text("")
    (newest / "trainer_state.pt").unlink()
    with pytest.raises(
        RunFolderError, match=r"step_000002 cannot be gone on from: FileNotFoundError.*delete the folder"
    ):
        run_job(conf, resume=True)


def test_two_runs_started_at_once_have_folders_of_their_own(conf: Path) -> None:
    loaded = load_config(conf)
    with RunDir.open(loaded.config, resume=False) as first, RunDir.open(loaded.config, resume=False) as second:
        assert (first.path.name, second.path.name) == ("job", "job-2")
        with first.save_checkpoint(1) as folder:
            (folder / "weights").write_text("")
        with second.save_checkpoint(1) as folder:
            (folder / "weights").write_text("")
        with pytest.raises(ConfigError, match="is in use by process"):
            run_job(conf, resume=True)
