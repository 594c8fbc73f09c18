"""TRL in a process of its own, beside a benchmark that takes turns with it: each side waits, with the processor free,
while the other makes a step. What ASTune says to its own process (how threads wait, what becomes of freed memory) is
not said to TRL's.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

assert "astune.backbone.local" not in sys.modules, "import this first: TRL's process would inherit its variables"
AS_IT_COMES = dict(os.environ)
NAME = f"TRL {version('trl')}"


class Trl:
    """A trainer that makes a step when it is told."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def step(self) -> dict[str, Any]:
        """`seconds` of a step and `rollout` of them, tokens `sampled`, of `prompt`, and `computed` with padding."""
        return self._ask("step")

    def save(self, file: Path) -> None:
        """Write the weights as torch does."""
        self._ask(f"save {file}")

    def _ask(self, line: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self.answer()

    def answer(self) -> dict[str, Any]:
        """What it says next. Raises RuntimeError if it has ended instead; why is on its stderr, which is ours."""
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline()):
            raise RuntimeError(f"TRL's process ended with {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextlib.contextmanager
def trl(
    model: Path,
    rows: list[dict[str, Any]],
    reward: str,
    config: dict[str, Any],
    tools_from: Path | None = None,
    threads: int = 0,
) -> Iterator[Trl]:
    """Train `model` on `rows` with the `reward` of that name in `trl_process.py`, with what `config` gives GRPOConfig,
    and with the calculator of a folder as a tool; `threads` of torch, 0 for as many as it takes by itself."""
    command = [sys.executable, str(Path(__file__).with_name("trl_process.py"))]
    tools = None if tools_from is None else str(tools_from)
    given = {"model": str(model), "rows": rows, "reward": reward, "config": config, "threads": threads}
    with subprocess.Popen(
        command, env=AS_IT_COMES, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        process.stdin.write(json.dumps({**given, "tools_from": tools}) + "\n")
        process.stdin.flush()
        side = Trl(process)
        side.answer()  # once it is ready
        try:
            yield side
        finally:
            process.stdin.close()
            process.wait()
