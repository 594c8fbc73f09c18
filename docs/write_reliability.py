"""Writes the tables of docs/reliability.md from the `fault` marks of the tests: `python docs/write_reliability.py`.

Tests are read and not imported, so those of every environment count.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- tables -->\n", "<!-- end -->\n"
AREAS = (
    "Agents and the engine",
    "Runs and resuming",
    "Records and checkpoints",
    "The store",
    "Online training",
    "What a run says",
    "Tools and environments",
    "Judges",
    "Rubrics",
    "The OpenAI-compatible endpoint",
    "Foreign servers",
    "What people see",
    "Input files and settings",
)
MARK = "pytest.mark.fault"


@dataclass(frozen=True)
class Row:
    """A fault, and the tests that prove what happens: (file from the root of the project, function)."""

    area: str
    wrong: str
    happens: str
    tests: tuple[tuple[str, str], ...]


def rows(tests: Path = ROOT / "tests") -> list[Row]:
    """All rows, by area, each area in the order of its tests. Tests with the same mark prove one row together.

    Raises:
        ValueError: a mark that is no row, or on what pytest does not take for a test; with file and line.
    """
    found: dict[tuple[str, str, str], list[tuple[str, str]]] = {}
    for path in sorted(tests.rglob("*.py")):
        for cells, function in _marks(path):
            found.setdefault(cells, []).append((path.relative_to(tests.parent).as_posix(), function))
    made = [Row(*cells, tuple(proofs)) for cells, proofs in found.items()]
    return sorted(made, key=lambda row: AREAS.index(row.area))


def _marks(path: Path) -> Iterator[tuple[tuple[str, str, str], str]]:
    """The cells of each mark in a file, and the name of its function."""
    text = path.read_text(encoding="utf-8")
    if ".fault" not in text:
        return
    tree = ast.parse(text)
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    names = [node.name for node in functions]
    tests = [node for node in functions if node.name.startswith("test_") and path.name.startswith("test_")]
    marked = [(_name_of(mark), mark, node.name) for node in tests for mark in node.decorator_list if _name_of(mark)]
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and ast.unparse(node) == MARK
            and all(node is not name for name, *_ in marked)
        ):
            raise ValueError(f"{path}:{node.lineno}: the mark stands on no function test_... of a file test_*.py")
    for _, mark, name in marked:
        if names.count(name) > 1:
            raise ValueError(f"{path}:{mark.lineno}: there are two functions {name}, of which pytest collects the last")
        yield _cells(mark, _constants(tree), f"{path}:{mark.lineno}"), name


def _constants(tree: ast.Module) -> dict[str, object]:
    """What stands behind names like AREA at the top of the file."""
    assigned = [node for node in tree.body if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)]
    return {ast.unparse(node.targets[0]): node.value.value for node in assigned}


def _name_of(mark: ast.expr) -> ast.expr | None:
    """The node that says `pytest.mark.fault` in a decorator, called or not; None for another decorator."""
    name = mark.func if isinstance(mark, ast.Call) else mark
    return name if ast.unparse(name) == MARK else None


def _cells(mark: ast.expr, constants: Mapping[str, object], place: str) -> tuple[str, str, str]:
    given = mark.args if isinstance(mark, ast.Call) else []
    values = [arg.value if isinstance(arg, ast.Constant) else constants.get(ast.unparse(arg)) for arg in given]
    if len(values) != 3 or not all(isinstance(value, str) and value.strip() for value in values):
        raise ValueError(f"{place}: expected @{MARK}(area, what goes wrong, what happens), three texts")
    area, wrong, happens = map(str, values)
    if area not in AREAS:
        near = difflib.get_close_matches(area, AREAS, 1, 0)[0]
        raise ValueError(f"{place}: there is no area {area!r}. Did you mean {near!r}? There are: {', '.join(AREAS)}")
    return area, wrong, happens


def tables() -> str:
    lines, proven = [], rows()
    for area in AREAS:
        of_area = [row for row in proven if row.area == area]
        if of_area:
            lines += [f"\n## {area}\n", "| what goes wrong | what happens | proven by |", "| --- | --- | --- |"]
            lines += [f"| {_cell(row.wrong)} | {_cell(row.happens)} | {_links(row)} |" for row in of_area]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    """`text` as one cell: a mark has what the page needs, but for what would end the cell."""
    text = " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
    return text[:1].upper() + text[1:]


def _links(row: Row) -> str:
    """The files of the tests; the words of the row, in its mark, find the test there."""
    files = dict.fromkeys(file for file, _ in row.tests)
    return "<br>".join(f"[{file.removeprefix('tests/').removesuffix('.py')}](../{file})" for file in files)


def page_with_tables(text: str) -> str:
    """`text` with everything between the two marks replaced."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{tables()}{END}{after}"


def main() -> None:
    PAGE.write_text(page_with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
