"""rich's console, text and tables for words that are not ASTune's own: no markup, nothing that a terminal would obey.

Console().print(Text("[red]\\x1b[2J"))   # prints [red]\\u001b[2J
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from html import escape
from typing import IO, Any

import rich.console
import rich.text
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.style import Style
from rich.table import Table

from astune.support.chinese import localize
from astune.support.visible import visible


class Console(rich.console.Console):
    """Reads no markup in strings. Whatever is printed is made visible, rich's own movements of the cursor aside."""

    def __init__(self, *, stderr: bool = False, file: IO[str] | None = None, **options: Any) -> None:
        super().__init__(stderr=stderr, file=file, markup=False, emoji=False, highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> rich.text.Text:
        return super().render_str(visible(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else visible(text), style, control)


class ShowsItself(ABC):
    """What a script prints as text, and a notebook shows likewise."""

    @abstractmethod
    def print(self, console: Console) -> None:
        """Print all of it."""

    def __str__(self) -> str:
        console = Console(width=120, color_system=None)
        with console.capture() as text:
            self.print(console)
        return text.get()

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


class Text(rich.text.Text):
    """Made visible before rich takes control characters away, and before it counts columns."""

    def __init__(self, text: str = "", style: str | Style = "", **options: Any) -> None:
        super().__init__(visible(text), style, **options)

    def append(self, text: rich.text.Text | str, style: str | Style | None = None) -> Text:
        super().append(visible(text) if isinstance(text, str) else text, style)
        return self


def make_table(*columns: str, left: Collection[str] = (), gap: int = 3, title: str | None = None) -> Table:
    """An empty table without lines, heads in the user's language. The columns that `left` names hold text, the others
    numbers; nothing is cut off."""
    table = Table(
        title=title,
        title_justify="left",
        caption_justify="left",
        box=None,
        padding=(0, gap, 0, 0),
        header_style="dim",
    )
    for name in columns:
        table.add_column(localize(name), justify="left" if name in left else "right", overflow="fold")
    return table
