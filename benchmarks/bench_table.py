"""How every benchmark shows its figures, and how `ratios.py` reads them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

FILE = "ASTUNE_BENCH_TABLES"
"""The environment variable that names the file to which every table is written too, a line of JSON each."""


def table_of(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> Table:
    """A table whose first `left` columns are names and whose others are figures, on the right."""
    table = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number >= left else "left")
    cells = [list(row) for row in rows]
    for row in cells:
        table.add_row(*row)
    if FILE in os.environ:
        with open(os.environ[FILE], "a", encoding="utf-8") as file:
            file.write(json.dumps({"title": title, "columns": list(columns), "rows": cells}) + "\n")
    return table


@dataclass(frozen=True)
class Written:
    """A table of a benchmark that has run."""

    title: str
    columns: list[str]
    rows: list[list[str]]

    def __call__(self, column: str, *row: str) -> float:
        """The figure in `column` of the row whose first cells are `row`. Raises LookupError where there is none."""
        if column not in self.columns:
            raise LookupError(f"table {self.title!r} has no column {column!r}; it has {self.columns}")
        for cells in self.rows:
            if tuple(cells[: len(row)]) == row:
                return float(cells[self.columns.index(column)].replace(",", "").rstrip("x %"))
        raise LookupError(f"table {self.title!r} has no row {row}")


def read_tables(path: Path) -> list[Written]:
    """The tables of a run, in their order."""
    return [Written(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
