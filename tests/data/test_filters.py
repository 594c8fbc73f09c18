"""The filters on planted faults, as `benchmarks/data_filters.py` measures them."""

from __future__ import annotations

from benchmarks.data_filters import CHANGED, measure, mistaken, pass_rates


def test_planted_faults_are_found_and_good_tasks_kept() -> None:
    figures = measure(seed=0)
    assert all(precision >= 0.97 and recall >= 0.95 for precision, recall in figures.values()), figures
    assert figures["leak"][1] == 1.0


def test_no_leak_passes_with_half_of_its_words_changed_nor_with_other_numbers() -> None:
    kept, other = (dict(zip(CHANGED, pass_rates(seed=0, same_numbers=same), strict=True)) for same in (True, False))
    assert {kept[share] for share in CHANGED if share <= 0.5} == {0.0}
    assert other[0.0] == other[0.1] == 0.0
    assert mistaken(seed=0) < 0.03
