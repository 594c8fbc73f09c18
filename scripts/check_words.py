"""Names and docstrings as CONTRIBUTING.md wants them; part of `make check`.

    python -m scripts.check_words

A function begins with a verb in its plain form, unless it is a property; a docstring begins with a verb or a noun.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "astune"
PARTICIPLE = re.compile(
    r"(?!(need|feed|seed|speed|embed|exceed|shed)$)"
    r"([a-z]{2,}ed|written|known|shown|told|taken|given|chosen|said|held|kept|drawn|made|left|seen|shut|broken|sent|lost"
    r"|met|paid|spent|begun|gone|hung)"
)
WEAK_OPENINGS = frozenset(
    ["what", "whether", "those", "that", "how", "of", "as", "where", "who", "whose", "which", "when"]
)
READ_BY_AGENTS = frozenset(("list_files",))
"""Tools whose docstrings an agent reads: other words would be other prompts."""


def find_problems(source: str) -> Iterator[tuple[int, str]]:
    """Find what is wrong in a module: lines and sentences."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        is_property = any("property" in ast.unparse(each) for each in node.decorator_list)
        word = node.name.strip("_").split("_")[0]
        if not is_property and not node.name.startswith("__") and PARTICIPLE.fullmatch(word):
            yield node.lineno, f"{node.name} begins with a participle: begin with what the function does"
        first = re.split(r"\W", (ast.get_docstring(node) or "").lower(), maxsplit=1)[0]
        if first in WEAK_OPENINGS and node.name not in READ_BY_AGENTS:
            yield node.lineno, f"the docstring of {node.name} begins with {first!r}: begin with a verb or a noun"


def main() -> int:
    """Print every problem of the package; the exit code is 1 if there is any."""
    problems = [
        f"{path.relative_to(PACKAGE.parent)}:{line}: {problem}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for line, problem in find_problems(path.read_text(encoding="utf-8"))
    ]
    print(*problems, sep="\n", end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
