"""`astune` commands, each forked off a process that has torch loaded: so a kill costs a second and not ten."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from astune.cli import main

PRELOADED = [
    "astune.backbone.local.engine",
    "astune.training.start",
    "astune.online.service",
    "astune.online.training",
    "astune.online.release.releaser",
]


def fork(folder: Path, arguments: Sequence[str], log: Path, ahead: Any = None) -> BaseProcess:
    """Start a command in that folder; what it prints is added to `log`. `ahead` are `shared_seconds` that its clock is
    set by."""
    process: BaseProcess = _forking().Process(target=_start, args=(folder, list(arguments), log, ahead))
    process.start()
    return process


def shared_seconds() -> Any:
    """A number that processes share: `value`, 0 at first."""
    return _forking().Value("d", 0.0)


def warm_up() -> None:
    """What forks loads its libraries at the first: wait for that."""
    process = _forking().Process(target=time.time)
    process.start()
    process.join()


def _forking() -> Any:
    """One thread in one process, so that a fork of it is sound; that one computes nothing itself."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*PRELOADED, __name__])
    return context


def _start(folder: Path, arguments: list[str], log: Path, ahead: Any) -> None:
    os.chdir(folder)
    if ahead is not None:
        real = time.time
        time.time = lambda: real() + ahead.value
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    sys.exit(main(arguments))
