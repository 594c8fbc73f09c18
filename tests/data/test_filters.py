"""The filters on planted faults, as `benchmarks/data_filters.py` measures them."""

from __future__ import annotations

from benchmarks.data_filters import CHANGED, measure, mistaken, pass_rates


def test_planted_faults_are_found_and_good_tasks_kept() -> None:
    figures = measure(seed=0)
    assert all(precision >= 0.97 and recall >= 0.95 for precision, recall in figures.values()), figures
    assert figures["leak"][1] == 1.0


def test_no_leak_passes_with_a_fifth_of_its_words_changed() -> None:
    rates = dict(zip(CHANGED, pass_rates(seed=0), strict=True))
    assert rates[0.1] == rates[0.2] == 0.0
    assert mistaken(seed=0) < 0.1
