"""One process at a time in a run's folder; which run is resumed, and with which options."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from astune.errors import ConfigError, RunFolderError
from astune.monitor import RunDir

HOLD = """
import sys, time
from pathlib import Path
from astune.monitor.run_dir import RunLock
lock = RunLock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""


def save(run_dir: RunDir, step: int) -> None:
    with run_dir.save_checkpoint(step) as folder:
        (folder / "weights").write_text(f"weights of step {step}")
        (folder / "state").write_text("state")


@pytest.fixture
def begun(make_config):
    """A run with the checkpoints 4 and 8, that nobody works in."""

    def make(**keys):
        with RunDir.open(make_config(**keys), resume=False) as run_dir:
            save(run_dir, 4)
            save(run_dir, 8)
        return run_dir

    return make


@pytest.mark.fault(
    "Runs and resuming",
    "a run is resumed while another process works in its folder",
    "the second one is refused and told which process it is; a process that is killed leaves no lock",
)
def test_a_second_process_is_refused_until_the_first_is_gone(begun, make_config):
    run_dir = begun()
    with subprocess.Popen([sys.executable, "-c", HOLD, run_dir.path], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        before = run_dir.config_path.read_bytes()
        with pytest.raises(ConfigError, match=rf"is in use by process {holder.pid} on .*-c"):
            RunDir.open(make_config(), resume=True)
        assert run_dir.config_path.read_bytes() == before
        assert RunDir(run_dir.path).latest_checkpoint() == run_dir.checkpoint_path(8), "readers need no lock"
        holder.send_signal(signal.SIGKILL)
    RunDir.open(make_config(), resume=True).close()


def test_a_forked_process_does_not_keep_the_lock(begun, make_config):
    first = begun()
    run_dir = RunDir.open(make_config(), resume=True)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(reader, 1)
        os._exit(0)
    run_dir.close()
    try:
        with RunDir.open(make_config(), resume=True) as again:
            assert again.path == first.path
    finally:
        os.write(writer, b"x")
        os.waitpid(child, 0)
        os.close(reader)
        os.close(writer)


@pytest.mark.fault(
    "Runs and resuming",
    "the folder of another experiment looks like a later run of this one (col and col-7)",
    "--resume goes by the name in the run's own configuration",
)
def test_the_name_in_the_configuration_decides_which_run_is_resumed(begun, make_config):
    first = begun(experiment_name="col")
    begun(experiment_name="col-7")
    assert RunDir.open(make_config(experiment_name="col"), resume=True).path == first.path
    second = begun(experiment_name="col")
    assert second.path.name == "col-2"
    assert RunDir.open(make_config(experiment_name="col"), resume=True).path == second.path


def test_a_new_run_is_newer_than_all_others_also_where_one_was_deleted(begun):
    runs = [begun() for _ in range(3)]
    for path in sorted(runs[1].path.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    runs[1].path.rmdir()
    assert begun().path.name == "demo-4"


@pytest.mark.fault(
    "Runs and resuming",
    "options that make it another run are changed at --resume",
    "they are listed and refused, unless --allow-changes says that they are meant",
)
@pytest.mark.fault(
    "Records and checkpoints",
    "a run is resumed with another configuration",
    "the former configuration is kept beside it",
)
def test_changed_options_are_listed_and_refused_unless_they_are_meant(begun, make_config):
    run_dir = begun(seed=1)
    with pytest.raises(ConfigError) as refused:
        RunDir.open(make_config(seed=2, model={"path": "other"}, trainer={"tasks_per_step": 3}), resume=True)
    for line in ("astune.seed: 1 before, 2 now", "astune.model.path: tiny before", "astune.trainer.tasks_per_step: 8"):
        assert line in str(refused.value)
    assert "seed: 1" in run_dir.config_path.read_text()
    RunDir.open(make_config(seed=2, allow_changes=True), resume=True).close()
    assert "seed: 1" in (run_dir.path / "config_until_step_000008.yaml").read_text()


def test_how_far_and_with_what_means_a_run_goes_may_change(begun, make_config):
    first = begun()
    free = {"trainer": {"total_steps": 99, "save_every": 3}, "monitor": {"progress": "off"}, "evaluation": {"every": 2}}
    with RunDir.open(make_config(**free, rollout={"max_concurrent": 2}), resume=True) as run_dir:
        assert run_dir.path == first.path
        assert "total_steps: 99" in run_dir.config_path.read_text()


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
@pytest.mark.fault(
    "Records and checkpoints",
    "a checkpoint is damaged: a flipped bit, half a file, a file gone",
    "it is put aside and said; the run goes on from the one before it",
)
def test_a_damaged_checkpoint_is_put_aside_and_the_one_before_it_taken(begun, damage):
    run_dir, told = begun(), []
    file = run_dir.checkpoint_path(8) / "weights"
    data = bytearray(file.read_bytes())
    data[3] ^= 1
    if damage == "remove":
        file.unlink()
    else:
        file.write_bytes(data if damage == "flip" else data[:5])
    assert run_dir.take_checkpoint(told.append) == run_dir.checkpoint_path(4)
    assert "step_000008 is broken" in told[0] and "weights" in told[0]
    assert run_dir.latest_checkpoint() == run_dir.checkpoint_path(4)
    (run_dir.checkpoint_path(4) / "state").unlink()
    with pytest.raises(RunFolderError, match=r"no checkpoint is left to go on from .*state is missing"):
        run_dir.take_checkpoint(told.append)


def test_checksums_are_those_of_sha256sum(begun):
    folder = begun().checkpoint_path(8)
    subprocess.run(["sha256sum", "--check", "--quiet", "COMPLETE"], cwd=folder, check=True)


def test_a_run_stays_where_it_began_when_the_working_directory_changes(make_config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with RunDir.open(make_config(runs_dir="here"), resume=False) as run_dir:
        monkeypatch.chdir("elsewhere")
        save(run_dir, 1)
    assert (tmp_path / "here" / "math" / "demo" / "checkpoints" / "step_000001" / "COMPLETE").is_file()


def test_a_place_where_no_folder_can_be_made_is_named(make_config, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"astune.runs_dir: no folder can be made .*file"):
        RunDir.open(make_config(runs_dir=str(tmp_path / "file")), resume=False)
