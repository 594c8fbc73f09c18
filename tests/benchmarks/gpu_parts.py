"""Parts for tests of `gpu_check.py`: what a part may do to its process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from gpu.job import CheckFailed, Job

HANGS = "import time; time.sleep(600)"


def good(job: Job, value: int = 1) -> None:
    with (job.results / "runs").open("a") as file:
        file.write(f"{job.part.name}\n")
    job.fact("value", value)
    job.row("", {"column": "a | b", "figure": 0.5})


def fails(job: Job) -> None:
    job.row("", {"found before": 1})
    raise CheckFailed("the agent did not get better")


def dies(job: Job) -> None:
    job.fact("found before", 2)
    os._exit(137)


def hangs(job: Job) -> None:
    """With a process of its own that holds on to the output."""
    child = subprocess.Popen([sys.executable, "-c", HANGS])
    job.fact("child", child.pid)
    time.sleep(600)


def better_at_last(job: Job) -> None:
    """Fails the first time."""
    tried: Path = job.results / "tried"
    if not tried.exists():
        tried.touch()
        raise CheckFailed("the first time")
