"""Full disks and damaged lines."""

from __future__ import annotations

import resource
import signal

import pytest

from astune.errors import RunFolderError
from astune.monitor import EpisodeLog, RunDir, read_episodes, read_metrics
from astune.monitor.jsonl import LineFile, keep_lines, read_lines
from tests.monitor.tensorboard import log_with_tensorboard
from tests.rows import each_row


@pytest.fixture
def small_disk():
    """Files can grow to 4 kB, as on a disk that is full then."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.fault(
    "Records and checkpoints",
    "the disk is full while a record is written",
    "the run stops and names the file; the file ends with its last whole line",
)
def test_a_full_disk_is_named_and_leaves_whole_lines(tmp_path, small_disk):
    with LineFile(tmp_path / "a.jsonl") as file:
        with pytest.raises(RunFolderError, match=r"a\.jsonl cannot be written \(File too large\).*Make room"):
            for step in range(1000):
                file.append({"step": step, "text": "x" * 100})
        file.append({"step": -1})
    rows = list(read_lines(tmp_path / "a.jsonl"))
    assert rows[-1] == {"step": -1} and len(rows) > 20
    assert (tmp_path / "a.jsonl").read_bytes().endswith(b"}\n")


def test_a_checkpoint_that_finds_no_room_leaves_the_one_before_it(tmp_path, small_disk):
    run_dir = RunDir(tmp_path)
    with run_dir.save_checkpoint(1) as folder:
        (folder / "weights").write_bytes(b"x" * 100)
    with pytest.raises(RunFolderError, match=r"step_000002 cannot be written"), run_dir.save_checkpoint(2) as folder:
        (folder / "weights").write_bytes(b"x" * 10_000)
    assert run_dir.latest_checkpoint() == run_dir.checkpoint_path(1)
    assert not run_dir.checkpoint_path(2).exists()


def test_a_device_that_is_full_is_named(tmp_path):
    (tmp_path / "full.jsonl").symlink_to("/dev/full")
    with pytest.raises(RunFolderError, match="No space left on device"), LineFile(tmp_path / "full.jsonl") as file:
        file.append({"step": 1})


@pytest.mark.fault(
    "Records and checkpoints",
    "a line of the metrics or episodes is damaged",
    "the message names file and line and how to take it out; an unfinished last line is left out",
)
@each_row(
    "line",
    [
        b"nonsense",
        b"\xff\xfe",
        b"\0\0\0",
        b"[" * 5000,
        b"7",
        b"{}",
        b'{"step": "1"}',
        b'{"step": 1' + b"0" * 5000 + b"}",
    ],
    ids=["text", "no utf-8", "zeros", "deep", "a number", "no step", "a step of text", "a long number"],
)
def test_a_damaged_line_is_named_with_what_to_do(tmp_path, line):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n' + line + b'\n{"step": 2}\n{"step": 3, "lo')
    for read in (read_metrics, lambda path: keep_lines(path, lambda row: True)):
        with pytest.raises(RunFolderError, match=r"metrics\.jsonl, line 2: .*sed -i 2d"):
            read(path)
    path.write_bytes(b'{"step": 1}\n{"step": 2}\n{"step": 3, "lo')
    assert [row["step"] for row in read_metrics(path)] == [1, 2]


def test_a_line_that_is_no_episode_is_named(tmp_path):
    (tmp_path / "train.jsonl").write_text('{"step": 1, "turns": 3}\n')
    with pytest.raises(RunFolderError, match=r"train\.jsonl, line 1: not an episode"):
        list(read_episodes(tmp_path / "train.jsonl"))


def test_names_that_no_protocol_takes_do_not_end_the_run(run_dir):
    log = log_with_tensorboard(run_dir)
    log.log(1, {"workflow/\ud800": 1.0, "huge": 1e300})
    log.close()
    (row,) = read_metrics(run_dir.metrics_path)
    assert row["workflow/\ud800"] == 1.0


def test_what_was_evaluated_half_at_a_step_is_dropped(tmp_path):
    run_dir = RunDir(tmp_path)
    for phase in ("train", "eval_sampled", "eval_greedy"):
        with LineFile(run_dir.episodes_dir / f"{phase}.jsonl") as file:
            for step in (1, 2, 3):
                file.append({"step": step, "phase": phase.replace("_", "/")})
    EpisodeLog(run_dir).truncate_after(2, {"sampled"})
    kept = {path.stem: [row["step"] for row in read_lines(path)] for path in run_dir.episodes_dir.iterdir()}
    assert kept == {"train": [1, 2], "eval_sampled": [1, 2], "eval_greedy": [1]}
