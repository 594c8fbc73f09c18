"""`--backbone=verl` as people start it: a process that is told to end, and one that is killed and goes on with more
workers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import psutil
import pytest

from astune.cli import main
from astune.monitor import read_episodes, read_metrics
from tests.launched import wait_for
from tests.verl.apart import AHEAD, OWN_SERVER
from tests.verl.on_ray import DEMO, OF_ONE_PROCESS, SETTINGS

RUN = Path("runs/math_agent/demo")
LONG = (*SETTINGS, "astune.trainer.total_steps=200")
PATIENCE = 600.0
"""Seconds after which a run that does not come so far is taken to hang, on a machine that does much besides."""
SEPARATE = ("verl.trainer.n_gpus_per_node=2", *OWN_SERVER, *AHEAD)
"""Two training workers, and a server in processes of its own, which gets the weights by a file and answers while they
learn."""


def launch(folder: Path, *more: str) -> subprocess.Popen[str]:
    own = {name: value for name, value in os.environ.items() if name not in OF_ONE_PROCESS}
    root = str(Path(__file__).parents[2])
    return subprocess.Popen(
        [sys.executable, "-m", "astune", "--conf", str(DEMO), "--backbone=verl", *LONG, *more],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=own | {"PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])},
    )


def steps_of(run: Path) -> list[int]:
    path = run / "metrics.jsonl"
    return [int(row["step"]) for row in read_metrics(path)] if path.is_file() else []


def saved(run: Path, step: int) -> bool:
    return (run / "checkpoints" / f"step_{step:06d}" / "COMPLETE").is_file()


def family_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """What Ray started for it. Its agents look once a minute whether they are still needed, and hold nothing."""
    family = psutil.Process(process.pid).children(recursive=True)
    return [child for child in family if not child.name().endswith("Agent")]


def assert_gone(family: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(family, timeout=PATIENCE)
    assert [child.name() for child in alive] == []


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that was killed after its first step, none of whose processes is left."""
    folder = tmp_path_factory.mktemp("killed")
    process = launch(folder)
    wait_for(process, lambda: saved(folder / RUN, 1), PATIENCE)
    family = family_of(process)
    assert any("AstuneWorker" in " ".join(child.cmdline()) for child in family)
    process.kill()
    process.communicate()
    assert_gone(family)
    return folder


def end_by_sigterm(process: subprocess.Popen[str], run: Path, step: int) -> tuple[list[int], str]:
    """The steps of a run that is told to end after that one, all of them saved, and its output."""
    wait_for(process, lambda: step in steps_of(run), PATIENCE)
    family = family_of(process)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130 and "interrupted after step" in output, output
    done = steps_of(run)
    assert done == [*range(1, len(done) + 1)] and saved(run, done[-1]), output
    rows = [row for row in read_metrics(run / "metrics.jsonl") if row["tokens/trained"]]
    assert all(row["policy_age/max"] <= 1 for row in rows), "played with older weights"
    assert all(row["servers/logprob_difference"] < 1e-3 for row in rows)
    played = Counter(record.step for record in read_episodes(run / "episodes" / "train.jsonl"))
    assert played == dict.fromkeys(done, 16)
    assert_gone(family)
    return done, output


@pytest.mark.fault("Runs and resuming", "a run on verl gets SIGTERM", "the steps done are saved; it ends with 130")
def test_sigterm_saves_a_run_and_ends_its_processes(tmp_path: Path) -> None:
    done, _ = end_by_sigterm(launch(tmp_path, "astune.trainer.save_every=0", *SEPARATE), tmp_path / RUN, 2)
    assert done[:2] == [1, 2]


@pytest.mark.release  # in CI: test_ranks, and a run that is stopped and goes on in test_on_ray
@pytest.mark.fault(
    "Runs and resuming",
    "a run on verl is killed",
    "its processes end with it; it goes on from its checkpoint, also with another number of workers",
)
def test_a_killed_run_goes_on_with_more_workers(killed: Path) -> None:
    run = killed / RUN
    before = json.loads((run / "checkpoints" / "step_000001" / "trainer_state.json").read_text())
    done, output = end_by_sigterm(
        launch(killed, "--resume", "--allow-changes", "astune.trainer.save_every=0", *SEPARATE), run, 3
    )
    assert "going on from step" in output
    state = json.loads((run / "checkpoints" / f"step_{done[-1]:06d}" / "trainer_state.json").read_text())
    assert state["updates"] > before["updates"]


@pytest.mark.fault(
    "What a run says",
    "verl asks for more GPUs than the cluster has, or no Ray answers",
    "an error with the key and what is there, before a run folder is made",
)
def test_a_run_that_cannot_begin_says_why_and_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["--conf", str(DEMO), "--backbone=verl", "verl.ray_kwargs.ray_init.address=127.0.0.1:9"]) == 2
    assert "nothing answers at 127.0.0.1:9" in capsys.readouterr().err
    assert not (tmp_path / RUN).exists()
