"""Read the lines that a person, a file or a pipe gives the debugger."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn, TextIO

from astune.support.signals import on_ctrl_c
from astune.support.terminal import Console, Text

END = "."
"""The line that ends a text."""


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
        with on_ctrl_c(self._interrupt):
            return self._read_typed(prompt) if self.interactive else self._read_given(prompt)

    def edit(self, text: str) -> str:
        """Have a person write a text of several lines. With $VISUAL or $EDITOR on a terminal it is `text` as it comes
        out of the editor, else the lines up to one that is a single dot."""
        editor = os.environ.get("VISUAL") or os.environ.get("EDITOR")
        if editor and self.interactive:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "answer.txt"
                path.write_text(text, encoding="utf-8")
                subprocess.run([*shlex.split(editor), str(path)], check=True)
                return path.read_text(encoding="utf-8").rstrip("\n")
        self.console.print(f"  write the answer; a line with a single {END} ends it")
        lines: list[str] = []
        while (line := self.ask("  ")) not in (None, END):
            lines.append(line or "")
        return "\n".join(lines)

    def _interrupt(self) -> NoReturn:
        self.console.print()
        raise Interrupted

    def _read_given(self, prompt: str) -> str | None:
        line = self._commands.popleft() + "\n" if self._commands else self._stdin.readline()
        if not line:
            return None
        line = line.rstrip("\n")
        self.console.print(Text.assemble((prompt, "bold"), line), soft_wrap=True)
        return line

    def _read_typed(self, prompt: str) -> str | None:
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  history and editing in input()
        try:
            return input(prompt)
        except EOFError:
            self.console.print()
            return None
