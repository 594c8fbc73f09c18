"""How every benchmark shows its figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.table import Table


def table_of(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> Table:
    """A table whose first `left` columns are names and whose others are figures, on the right."""
    table = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number >= left else "left")
    for row in rows:
        table.add_row(*row)
    return table
