"""A copy of the project, a fault in it, and its tests in a process of their own."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from scripts.planted_faults.faults import Fault

ROOT = Path(__file__).parents[2]
PROCESSES = multiprocessing.get_context("forkserver")
LIBRARIES = ("pydantic", "sqlalchemy", "tokenizers", "torch")
"""Imported once, before there is any process with tests."""
SECONDS = 3600
"""A test run that takes longer hangs."""
BEGUN = 100
"""A process that ran pytest ends with so much more than pytest says, so that none that died is mistaken for one."""


def copy_project(folder: Path) -> Path:
    """Copy what Git knows or would know of the project."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
    )
    for name in filter(None, os.fsdecode(listed.stdout).split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


@contextmanager
def plant(fault: Fault, project: Path) -> Iterator[None]:
    """Have the fault in the project within the block."""
    path = project / fault.file
    sound = path.read_text(encoding="utf-8")
    path.write_text(sound.replace(fault.old, fault.new), encoding="utf-8")
    try:
        yield
    finally:
        path.write_text(sound, encoding="utf-8")


def run_tests(project: Path, tests: Sequence[str]) -> tuple[str, str]:
    """Tell what came of the tests, "passed", "failed", "hangs" or "broken", and the end of what they printed. They are
    broken where the process died before pytest ran them to an end."""
    printed = project / "printed.txt"
    printed.write_text("")
    process = PROCESSES.Process(target=test_in_project, args=(project, tests, printed))
    process.start()
    process.join(SECONDS)
    if process.is_alive():
        process.kill()
        return "hangs", f"more than {SECONDS} seconds"
    last = "\n".join(printed.read_text(encoding="utf-8", errors="replace").splitlines()[-5:])
    ends = {BEGUN + pytest.ExitCode.OK: "passed", BEGUN + pytest.ExitCode.TESTS_FAILED: "failed"}
    return ends.get(process.exitcode, "broken"), f"{last}\nexit code {process.exitcode}"


def test_in_project(project: Path, tests: Sequence[str], printed: Path) -> None:
    """Run the tests in this process, which is a new one with the libraries and without anything of the project."""
    with printed.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(project)
    sys.path.insert(0, str(project))
    # Compiled files go by the second of a change, and a fault may come and go within one.
    os.environ |= {"PYTHONPATH": str(project), "PYTHONDONTWRITEBYTECODE": "1"}
    sys.dont_write_bytecode = True
    # The first failure is enough, so that Hypothesis need not make it small.
    options = ["-q", "-x", "--tb=line", "--hypothesis-profile=first", "-p", "no:cacheprovider"]
    sys.exit(BEGUN + pytest.main([*options, *tests]))
