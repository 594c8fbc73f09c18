"""docs/reliability.md says what the tests prove."""

from __future__ import annotations

from pathlib import Path

import pytest

from astune.plugins import load_plugin

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "docs" / "write_reliability.py"
MARK = '@pytest.mark.fault("Judges", "it rains", "the judge stays dry")'


@pytest.fixture
def tests(tmp_path: Path) -> Path:
    (tmp_path / "tests").mkdir()
    return tmp_path / "tests"


def rows(tests: Path) -> list[tuple[str, ...]]:
    return [
        (row.area, row.wrong, row.happens, *row.tests) for row in load_plugin(f"{SCRIPT}:rows", kind="script")(tests)
    ]


def test_the_page_is_what_the_marks_of_the_tests_say() -> None:
    text = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    page_with_tables = load_plugin(f"{SCRIPT}:page_with_tables", kind="script")
    assert text == page_with_tables(text), "run: python docs/write_reliability.py"
    assert text.count("\n| ") > 40


def test_every_area_has_a_row() -> None:
    areas = load_plugin(f"{SCRIPT}:AREAS", kind="script")
    assert {row.area for row in load_plugin(f"{SCRIPT}:rows", kind="script")()} == set(areas)


def test_tests_with_one_mark_prove_one_row_together(tests: Path) -> None:
    (tests / "test_b.py").write_text(f"{MARK}\nasync def test_two():\n    pass\n")
    (tests / "test_a.py").write_text(f"{MARK}\n{MARK.replace('Judges', 'Rubrics')}\ndef test_one():\n    pass\n")
    both = ("tests/test_a.py", "test_one"), ("tests/test_b.py", "test_two")
    assert rows(tests) == [
        ("Judges", "it rains", "the judge stays dry", *both),
        ("Rubrics", "it rains", "the judge stays dry", both[0]),
    ]


def test_a_cell_may_stand_behind_a_name(tests: Path) -> None:
    mark = MARK.replace('"Judges"', "AREA")
    (tests / "test_a.py").write_text(f'AREA = "Judges"\n{mark}\ndef test_one(): ...')
    assert rows(tests) == [("Judges", "it rains", "the judge stays dry", ("tests/test_a.py", "test_one"))]


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("test_a.py", f"{MARK}\ndef helper(): ...", r"test_a.py:1: the mark stands on no function"),
        ("other.py", f"{MARK}\ndef test_it(): ...", r"other.py:1: the mark stands on no function"),
        ("test_a.py", f"pytestmark = {MARK[1:]}", r"test_a.py:1: the mark stands on no function"),
        ("test_a.py", f"def f():\n    {MARK}\n    def test_it(): ...", r"test_a.py:2: the mark stands on no function"),
        ("test_a.py", f"{MARK}\ndef test_it(): ...\ndef test_it(): ...", r"two functions test_it, of which"),
        ("test_a.py", "@pytest.mark.fault\ndef test_it(): ...", r"test_a.py:1: expected @pytest.mark.fault\("),
        ("test_a.py", MARK.replace('"it rains"', "rain()") + "\ndef test_it(): ...", r"test_a.py:1: expected @pytest"),
        ("test_a.py", MARK.replace("it rains", " ") + "\ndef test_it(): ...", r"test_a.py:1: expected @pytest"),
        (
            "test_a.py",
            MARK.replace("Judges", "Judge") + "\ndef test_it(): ...",
            r"no area 'Judge'. Did you mean 'Judges'",
        ),
    ],
)
def test_a_mark_that_proves_nothing_is_named_with_its_place(tests: Path, file: str, text: str, message: str) -> None:
    (tests / file).write_text(text)
    with pytest.raises(ValueError, match=message):
        rows(tests)
