"""rich's console and text for words that are not ASTune's own: no markup, nothing that a terminal would obey.

Console().print(Text("[red]\\x1b[2J"))   # prints [red]\\u001b[2J
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import IO, Any

import rich.console
import rich.text
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.style import Style

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


class Text(rich.text.Text):
    """Made visible before rich takes control characters away, and before it counts columns."""

    def __init__(self, text: str = "", style: str | Style = "", **options: Any) -> None:
        super().__init__(visible(text), style, **options)

    def append(self, text: rich.text.Text | str, style: str | Style | None = None) -> Text:
        super().append(visible(text) if isinstance(text, str) else text, style)
        return self
