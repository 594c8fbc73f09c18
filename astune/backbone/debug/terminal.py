"""Read what a person, a file or a pipe tells the debugger."""

from __future__ import annotations

import contextlib
import sys
from collections import deque
from collections.abc import Iterable
from typing import NoReturn, TextIO

from astune.support.signals import on_ctrl_c
from astune.support.terminal import Console, Text


class Interrupted(Exception):
    """Ctrl-C where a line was expected."""


class Terminal:
    """Lines of a file of commands first, then of standard input.

        terminal = Terminal(console, ["show tokens", "continue"])
        terminal.ask("(astune) ")    # "show tokens", shown as if it had been typed

    On a terminal `input` reads, with history and editing where Python has readline; lines of a file or a pipe are
    shown behind the prompt. Everything else waits meanwhile.
    """

    def __init__(self, console: Console, commands: Iterable[str] = (), stdin: TextIO | None = None) -> None:
        self.console = console
        self._commands = deque(commands)
        self._stdin = sys.stdin if stdin is None else stdin

    @property
    def interactive(self) -> bool:
        """True if a person types the next line."""
        return not self._commands and self._stdin.isatty()

    def ask(self, prompt: str) -> str | None:
        """The next line, None where there is none left. Raises Interrupted for Ctrl-C."""
        # `continue` at a `breakpoint()` leaves Ctrl-C to pdb, which would only stop at the next line of code.
        with on_ctrl_c(self._interrupted):
            return self._typed(prompt) if self.interactive else self._given(prompt)

    def _interrupted(self) -> NoReturn:
        self.console.print()
        raise Interrupted

    def _given(self, prompt: str) -> str | None:
        line = self._commands.popleft() + "\n" if self._commands else self._stdin.readline()
        if not line:
            return None
        line = line.rstrip("\n")
        self.console.print(Text.assemble((prompt, "bold"), line), soft_wrap=True)
        return line

    def _typed(self, prompt: str) -> str | None:
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  history and editing in input()
        try:
            return input(prompt)
        except EOFError:
            self.console.print()
            return None
