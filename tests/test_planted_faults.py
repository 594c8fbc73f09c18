"""The faults of `scripts/planted_faults` still have a place in the code; that tests notice them is what it shows."""

from dataclasses import replace
from pathlib import Path

from scripts.planted_faults.__main__ import find_misplaced, main
from scripts.planted_faults.copies import plant, run_tests
from scripts.planted_faults.faults import FAULTS
from tests.rows import each_row

ALL = [fault for faults in FAULTS.values() for fault in faults]


def test_every_fault_has_its_place_and_tests() -> None:
    assert find_misplaced(ALL) == []
    assert [len(faults) for faults in FAULTS.values()] == [20, 10, 10, 10, 10]
    assert len({fault.what for fault in ALL}) == 60


def test_a_fault_without_a_place_or_tests_is_named() -> None:
    moved = replace(ALL[0], old="no such line")
    assert find_misplaced([moved]) == [f"{moved.what}: 'no such line' stands 0 times in {moved.file}, expected once"]
    untested = replace(ALL[0], tests=("tests/nowhere.py",))
    assert find_misplaced([untested]) == [f"{untested.what}: there is no tests/nowhere.py"]


def test_a_fault_is_there_only_while_it_is_tried(tmp_path: Path) -> None:
    fault = replace(ALL[0], file="code.py", old="a + b", new="a - b")
    code = tmp_path / "code.py"
    code.write_text("return a + b")
    with plant(fault, tmp_path):
        assert code.read_text() == "return a - b"
    assert code.read_text() == "return a + b"


def test_an_area_that_is_not_there_is_told(capsys) -> None:
    assert main(["--only", "nowhere"]) == 2
    assert capsys.readouterr().out == "no fault is called 'nowhere'\n"


@each_row(("does", "outcome"), [("assert False", "failed"), ("os._exit(1)", "broken")])
def test_a_process_that_died_has_noticed_no_fault(tmp_path: Path, does: str, outcome: str) -> None:
    (tmp_path / "test_it.py").write_text(f"import os\n\n\ndef test_it():\n    {does}\n")
    (tmp_path / "conftest.py").write_text("import hypothesis\n\nhypothesis.settings.register_profile('first')\n")
    assert run_tests(tmp_path, ["test_it.py"])[0] == outcome
