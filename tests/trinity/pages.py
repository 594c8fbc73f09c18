"""The commands of docs/trinity.md and of the ReAct tutorial that need Trinity and no GPU, as they stand there."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def command_of(page: str) -> list[str]:
    """The words of the one command of a page that runs Python of the environment for Trinity without GPUs."""
    blocks = re.findall(
        r"^```bash[^\n]*\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    (found,) = [shlex.split(line) for line in lines if ".venv-trinity/bin/python" in line]
    return found


def launch_as_written(page: str, folder: Path, *more: str) -> subprocess.Popen[str]:
    """Start the command in `folder`, as in a clone, with settings on top. Agents may import from the math tutorial."""
    variable, program, *arguments = command_of(page)
    assert program == ".venv-trinity/bin/python" and variable == "PYTHONPATH=tests/trinity/stubs"
    for name in ("launcher.py", "tutorial", "tests/trinity/stubs"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_file():
            shutil.copy(ROOT / name, folder / name)
        else:
            shutil.copytree(ROOT / name, folder / name, dirs_exist_ok=True)
    path = os.pathsep.join(["tests/trinity/stubs", str(ROOT), str(ROOT / "tutorial" / "math_agent")])
    return subprocess.Popen(
        [sys.executable, *arguments, *more],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path, "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
