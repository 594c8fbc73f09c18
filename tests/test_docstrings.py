"""Every example in a docstring of `astune` gives what it says. `...` in what is expected stands for anything."""

import doctest
import re
from pathlib import Path

import pytest

from tests.rows import each_row

ROOT = Path(__file__).parents[1]
EXAMPLES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): count
    for path in sorted((ROOT / "astune").rglob("*.py"))
    if (count := len(re.findall(r"^ *>>> ", path.read_text(encoding="utf-8"), re.MULTILINE)))
}
"""Modules with examples, and how many each has."""


@each_row("module", EXAMPLES)
def test_examples_in_docstrings_hold(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = doctest.testmod(pytest.importorskip(module), optionflags=doctest.ELLIPSIS)
    assert found == (0, EXAMPLES[module])
