"""`make bench`: short forms beside what was recorded, with a benchmark that is a file of three lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import ratios
from ratios import PARTS, RECORDED, Part, Ratio, compare

BENCHMARK = """
import sys
from pathlib import Path
sys.path.insert(0, {benchmarks!r})
from bench_table import table_of
place = Path({times!r})
values = place.read_text().split()
place.write_text(" ".join(values[1:]))
if values[0] == "stop":
    sys.exit("no more")
table_of("Speed", ("", "tokens/s", "times"), [("limit", "1,000", ""), ("ours", "1,300", values[0] + "x")])
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    source = BENCHMARK.format(benchmarks=str(ratios.HERE), times=str(tmp_path / "times"))
    (tmp_path / "quick.py").write_text(source)
    monkeypatch.setattr(ratios, "HERE", tmp_path)
    return tmp_path


def outcome(folder: Path, *times: str, recorded: float | None = None, more: bool = True, record: bool = False) -> int:
    """Of a benchmark that shows one of `times` at each start."""
    part = Part("quick.py", "", 60, (Ratio("times the limit", lambda t: t[0]("times", "ours"), more),))
    (folder / "times").write_text(" ".join(times))
    if recorded is not None:
        (folder / "recorded.json").write_text(json.dumps({"quick": {"times the limit": recorded}}))
    return compare([part], folder / "out", folder / "recorded.json", record=record)


def test_a_ratio_that_fell_by_a_fifth_twice_is_red_and_ends_with_1(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert outcome(folder, "1.0", "1.1", recorded=1.5) == 1
    shown = capsys.readouterr().out
    assert "1.10" in shown and "0.73, fallen" in shown


def test_one_that_fell_by_chance_is_measured_again(folder: Path) -> None:
    assert outcome(folder, "1.0", "1.4", recorded=1.5) == 0
    assert (folder / "times").read_text() == ""


@pytest.mark.parametrize(("now", "code"), [("1.3", 1), ("1.2", 0), ("0.2", 0)])
def test_where_less_is_better_more_has_fallen(folder: Path, now: str, code: int) -> None:
    assert outcome(folder, now, now, recorded=1.0, more=False) == code


def test_what_is_recorded_is_what_the_next_is_compared_with(folder: Path) -> None:
    assert outcome(folder, "2.0", record=True) == 0
    assert json.loads((folder / "recorded.json").read_text()) == {"quick": {"times the limit": 2.0}}
    assert outcome(folder, "1.5", "1.5") == 1


def test_a_benchmark_that_ends_badly_is_told_and_the_others_go_on(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert outcome(folder, "stop", recorded=1.0) == 1
    assert "failed" in capsys.readouterr().out and "no more" in (folder / "out" / "quick.log").read_text()


def test_a_table_that_lacks_a_figure_is_named(folder: Path) -> None:
    assert outcome(folder, "1.0") == 0
    (table,) = ratios.read_tables(folder / "out" / "quick.jsonl")
    assert table("tokens/s", "limit") == 1000
    with pytest.raises(LookupError, match=r"'Speed' has no column 'ms'; it has \['', 'tokens/s', 'times'\]"):
        table("ms", "ours")
    with pytest.raises(LookupError, match=r"no row \('theirs',\)"):
        table("times", "theirs")


def test_what_is_recorded_is_still_measured() -> None:
    measured = {part.name: {ratio.name for ratio in part.ratios} for part in PARTS}
    recorded = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    assert all(set(figures) == measured[name] for name, figures in recorded.items())
    assert all((RECORDED.parent / part.script).exists() for part in PARTS)
