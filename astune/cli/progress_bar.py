"""The bar that commands show while they work through what can be counted."""

from __future__ import annotations

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from astune.support.terminal import Console


def progress_bar(console: Console) -> Progress:
    """A bar for each task that is added to it, gone when the work is done; none where `console` is no terminal."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
