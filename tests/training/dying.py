"""Runs in processes of their own that end at a chosen write, as by `kill -9`, Ctrl-C or a full disk."""

from __future__ import annotations

import gc
import io
import json
import multiprocessing
import os
import resource
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

from astune.config.load import load_config
from astune.errors import AstuneError
from astune.monitor.run_dir import RunDir
from astune.testing import script_engine
from astune.training.start import run_training
from astune.types import RunReport

Ending: TypeAlias = Literal["kill", "interrupt", "disk"]
CHANGES = {"write", "fsync", "replace", "rename", "mkdir", "rmdir", "unlink", "truncate", "commit"}
"""Calls that change what is on a disk."""
TORN = b'{"step": 1, "torn'


def play(conf: Path, overrides: Sequence[str], resume: bool) -> RunReport:
    return run_training(load_config(conf, overrides, resume=resume), script_engine(lambda prompt: "4"))


def play_until(ending: Ending, at: int, conf: Path, overrides: Sequence[str], resume: bool) -> int:
    """Play in another process, which ends at the `at`-th write, or once a file has grown by `at` times 100 bytes.
    Returns its exit code."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    process = context.Process(target=_play_until, args=(ending, at, conf, list(overrides), resume))
    process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode


def _play_until(ending: Ending, at: int, conf: Path, overrides: Sequence[str], resume: bool) -> None:
    gc.freeze()
    log = os.open(conf.with_name("log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if ending == "disk":
        sizes = [path.stat().st_size for path in conf.parent.rglob("*") if path.is_file() and path.name != "log"]
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (max(sizes) + 100 * at, resource.RLIM_INFINITY))
    else:
        end_at(at, signal.SIGKILL if ending == "kill" else signal.SIGINT)
    try:
        report = play(conf, overrides, resume)
    except AstuneError as error:
        print(error)
        sys.exit(2)
    except KeyboardInterrupt:  # before the run listens, and between two of its stages
        sys.exit(130)
    sys.exit({"completed": 0, "interrupted": 130}.get(report.status, 1))


def end_at(call: int, sign: signal.Signals) -> None:
    """Send this process that signal in the place of the call of that number, from 1, which changes what is on a disk.
    A line that was to be written is half there then."""
    made = 0

    def watch(frame: object, event: str, function: Any) -> None:
        nonlocal made
        if event != "c_call" or function.__name__ not in CHANGES:
            return
        owner = function.__self__
        if not (owner is sys.modules["posix"] or isinstance(owner, io.IOBase) or "sqlite" in type(owner).__module__):
            return
        made += 1
        if made == call:
            if sign == signal.SIGKILL and isinstance(owner, io.FileIO) and str(owner.name).endswith(".jsonl"):
                os.write(owner.fileno(), TORN)
            os.kill(os.getpid(), sign)

    threading.setprofile(watch)
    sys.setprofile(watch)


def write_job(folder: Path) -> Path:
    """A run of two tasks a step, whose held-out reward is the best after step 2."""
    folder.mkdir(parents=True, exist_ok=True)
    agents = Path(__file__).with_name("agents.py")
    rows = [json.dumps({"query": f"{n}?", "answer": "4"}) for n in range(5)]
    (folder / "train.jsonl").write_text("\n".join(rows[:4]))
    (folder / "held.jsonl").write_text(rows[4])
    config = {
        "backbone": "astune.testing:ScriptedBackbone",
        "project_name": "test",
        "runs_dir": str(folder / "runs"),
        "task_reader": {"jsonl": {"training": {"file_path": "train.jsonl"}, "validation": {"file_path": "held.jsonl"}}},
        "rollout": {"agentscope_learn_protocol": f"{agents}:by_step", "num_repeat": 3, "max_tokens": 4},
        "trainer": {"total_steps": 3, "tasks_per_step": 2, "keep_checkpoints": 1, "save_every": 1, "warmup_steps": 9},
        "evaluation": {"before": True, "every": 1},
        "monitor": {"progress": "off", "trackers": []},
    }
    (folder / "job.yaml").write_text(json.dumps({"astune": config}))
    return folder / "job.yaml"


def checkpoints_of(run: Path) -> dict[str, bytes]:
    """What each whole checkpoint holds. None is damaged."""
    found = RunDir(run)
    assert [found.damage(path) for path in found.checkpoints()] == [None] * len(found.checkpoints())
    return {path.name: (path / "counts.json").read_bytes() for path in found.checkpoints()}
