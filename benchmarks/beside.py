"""What ASTune is measured beside, in a process of its own: each side waits, with the processor free, while the other
works. What ASTune says to its own process (how threads wait, what becomes of freed memory) is not said to the other.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

assert "astune.backbone.local" not in sys.modules, "import this first: the process would inherit its variables"
AS_IT_COMES = dict(os.environ)


class Peer:
    """A program that answers each line with a line of JSON."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, line: str) -> dict[str, Any]:
        """What it answers. Raises RuntimeError if it has ended instead; why is on its stderr, which is ours."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        if not (answer := self._process.stdout.readline()):
            raise RuntimeError(f"{self._process.args!r} ended with {self._process.wait()}")
        found: dict[str, Any] = json.loads(answer)
        return found


@contextlib.contextmanager
def started(python: str, script: str, given: Mapping[str, Any]) -> Iterator[Peer]:
    """`script`, of this folder, once it has answered its first line, which is `given`."""
    command = [python, str(Path(__file__).with_name(script))]
    with subprocess.Popen(
        command, env=AS_IT_COMES, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            side = Peer(process)
            side.ask(json.dumps(given))
            yield side
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()
