"""Have a person write a text of several lines, in their editor or line by line."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from pathlib import Path

from astune.backbone.debug.stops.stop import Stop
from astune.backbone.debug.terminal import Terminal

END = "."


def edited_text(terminal: Terminal, text: str, stop: Stop) -> str:
    """On a terminal with $VISUAL or $EDITOR set: `text`, or the draft that was refused before, as it comes out of the
    editor. Else the lines up to one that is a single dot."""
    assert stop.answers is not None
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    if editor and terminal.interactive:
        return _in_editor(editor, stop.answers.draft or text)
    terminal.console.print(f"  write the answer; a line with a single {END} ends it")
    lines: list[str] = []
    while (line := terminal.ask("  ")) not in (None, END):
        lines.append(line or "")
    return "\n".join(lines)


def _in_editor(editor: str, text: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "answer.txt"
        path.write_text(text, encoding="utf-8")
        subprocess.run([*shlex.split(editor), str(path)], check=True)
        return path.read_text(encoding="utf-8").rstrip("\n")
