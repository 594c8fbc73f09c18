from pathlib import Path

import pytest

from astune.errors import ConfigError
from astune.monitor import RunDir
from tests.rows import each_row


def save(run_dir: RunDir, step: int) -> Path:
    with run_dir.save_checkpoint(step) as folder:
        (folder / "model.safetensors").write_text(f"weights of step {step}")
    return folder


def test_a_new_run_gets_its_folder_and_keeps_its_config(tmp_path, make_config):
    run_dir = RunDir.open(make_config(seed=7), resume=False)
    assert run_dir.path == tmp_path / "math" / "demo"
    assert "seed: 7" in run_dir.config_path.read_text()


@pytest.mark.fault(
    "Records and checkpoints",
    "a second run has the name of an earlier one",
    "it gets a folder of its own; nothing is written over",
)
def test_a_second_run_of_the_same_name_leaves_the_first_alone(make_config):
    first = RunDir.open(make_config(), resume=False)
    first.metrics_path.write_text("kept\n")
    second, third = (RunDir.open(make_config(), resume=False) for _ in range(2))
    assert (second.path.name, third.path.name) == ("demo-2", "demo-3")
    assert first.metrics_path.read_text() == "kept\n"


def test_resume_reopens_the_newest_run(make_config):
    for _ in range(11):
        run_dir = RunDir.open(make_config(), resume=False)
        save(run_dir, 5)
        run_dir.close()
    RunDir.open(make_config(experiment_name="demo-extra"), resume=False)
    assert RunDir.open(make_config(), resume=True).path.name == "demo-11"


def test_resume_without_a_run_says_which_one_is_missing(make_config):
    with pytest.raises(ConfigError, match=r"there is no run .*demo"):
        RunDir.open(make_config(), resume=True)


def test_resume_without_a_complete_checkpoint_says_so(make_config):
    run_dir = RunDir.open(make_config(), resume=False)
    run_dir.checkpoint_path(3).mkdir(parents=True)
    run_dir.close()
    with pytest.raises(ConfigError, match="no complete checkpoint"):
        RunDir.open(make_config(), resume=True)


def test_a_checkpoint_is_not_complete_while_it_is_written_again(make_config):
    run_dir = RunDir.open(make_config(), resume=False)
    save(run_dir, 10)
    with run_dir.save_checkpoint(10) as folder:
        assert list(folder.iterdir()) == []
        assert run_dir.latest_checkpoint() is None
    assert run_dir.latest_checkpoint() == folder


def test_pruning_keeps_the_newest_and_removes_what_was_half_written_before(make_config):
    run_dir = RunDir.open(make_config(), resume=False)
    for step in (2, 9, 10, 100):
        save(run_dir, step)
    run_dir.checkpoint_path(50).mkdir()
    run_dir.checkpoint_path(110).mkdir()
    run_dir.prune_checkpoints(keep=2)
    assert sorted(path.name for path in run_dir.checkpoints_dir.iterdir()) == [
        "step_000010",
        "step_000100",
        "step_000110",
    ]


def test_only_a_run_without_a_checkpoint_can_be_discarded(make_config):
    run_dir = RunDir.open(make_config(), resume=False)
    run_dir.discard()
    assert not run_dir.path.exists()
    begun = RunDir.open(make_config(), resume=False)
    save(begun, 1)
    begun.discard()
    assert begun.latest_checkpoint() is not None


@each_row("name", ["../x", "..", "/tmp/x", "a/../b", "a//b", "a/", "a\\b", "a\0b", "\ud800", "é" * 101])
def test_a_name_that_leads_elsewhere_makes_no_run(tmp_path, make_config, name):
    for key in ("project_name", "experiment_name"):
        config = make_config(**{key: name})
        for resume in (False, True):
            with pytest.raises(ConfigError, match=rf"astune\.{key}: got .* a folder below astune"):
                RunDir.open(config, resume=resume)
    assert list(tmp_path.iterdir()) == []


def test_projects_may_have_a_folder_in_common(tmp_path, make_config):
    with RunDir.open(make_config(project_name="team/math"), resume=False) as run:
        assert run.path == tmp_path / "team" / "math" / "demo"
