"""What ASTune is measured beside, in processes of its own: each side waits, with the processor free, while the other
works. Between its turns the other is stopped, as some look for work all the time (vLLM: a fifth of a core).
What ASTune says to its own process (how threads wait, what becomes of freed memory) is not said to the other.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
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
        self.go_on()
        with contextlib.suppress(BrokenPipeError):  # it has ended: its answer is empty
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        if not (answer := self._process.stdout.readline()):
            raise RuntimeError(f"{self._process.args!r} ended with {self._process.wait()}")
        os.killpg(self._process.pid, signal.SIGSTOP)
        found: dict[str, Any] = json.loads(answer)
        return found

    def go_on(self) -> None:
        os.killpg(self._process.pid, signal.SIGCONT)


@contextlib.contextmanager
def started(python: str, script: str, given: Mapping[str, Any]) -> Iterator[Peer]:
    """`script`, of this folder, once it has answered its first line, which is `given`."""
    command = [python, str(Path(__file__).with_name(script))]
    with subprocess.Popen(
        command, env=AS_IT_COMES, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        side = Peer(process)
        try:
            side.ask(json.dumps(given))
            yield side
        finally:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            with contextlib.suppress(ProcessLookupError):
                side.go_on()
            process.wait()
