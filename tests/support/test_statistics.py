"""The statistics of evaluations against enumerations and closed forms."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astune.support import statistics
from astune.support.statistics import estimate, pass_at_k, permutation_test
from tests.rows import each_row


@each_row(("attempts", "passed", "k"), [(5, 2, 1), (5, 2, 3), (6, 0, 2), (6, 6, 4), (7, 3, 5), (4, 4, 4)])
def test_pass_at_k_is_the_share_of_all_choices_of_k_attempts_that_have_a_success(
    attempts: int, passed: int, k: int
) -> None:
    results = [True] * passed + [False] * (attempts - passed)
    chosen = [any(choice) for choice in combinations(results, k)]
    assert pass_at_k(attempts, passed, k) == pytest.approx(sum(chosen) / len(chosen), abs=1e-15)


@given(st.integers(1, 30), st.data())
def test_pass_at_1_is_the_share_and_more_attempts_never_pass_less(attempts: int, data: st.DataObject) -> None:
    passed = data.draw(st.integers(0, attempts))
    values = [pass_at_k(attempts, passed, k) for k in range(1, attempts + 1)]
    assert values[0] == pytest.approx(passed / attempts)
    assert values == sorted(values) and values[-1] == float(passed > 0)


def enumerated(differences: list[float]) -> float:
    """p by all flips, in exact arithmetic."""
    exact = [Fraction(difference) for difference in differences]
    sums = [abs(sum(s * d for s, d in zip(signs, exact, strict=True))) for signs in product((1, -1), repeat=len(exact))]
    return sum(total >= abs(sum(exact)) for total in sums) / len(sums)


@given(st.lists(st.sampled_from([-1.0, -0.75, -0.5, 0.0, 0.25, 0.5, 1.0]), min_size=1, max_size=9))
@settings(max_examples=60)
def test_the_permutation_test_counts_all_flips(differences: list[float]) -> None:
    found = permutation_test(differences)
    assert found.exact and found.n == len(differences)
    assert found.p == pytest.approx(enumerated(differences), abs=1e-12)


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 5))
@settings(max_examples=40)
def test_of_single_attempts_it_is_mcnemars_exact_test(better: int, worse: int, equal: int) -> None:
    differences = [1.0] * better + [-1.0] * worse + [0.0] * equal
    n, least = better + worse, min(better, worse)
    tail = sum(math.comb(n, i) for i in range(least + 1)) / 2**n
    assert permutation_test(differences or [0.0]).p == pytest.approx(min(1.0, 2 * tail))


def test_thirds_that_add_up_otherwise_in_another_order_are_still_equal() -> None:
    differences = [1 / 3, 2 / 3, -1 / 3, 2 / 3, 1 / 3]
    signs = product((1, -1), repeat=5)
    sums = [abs(sum(s * round(3 * d) for s, d in zip(sign, differences, strict=True))) for sign in signs]
    assert permutation_test(differences).p == pytest.approx(sum(total >= 5 for total in sums) / 32)


def test_with_too_many_sums_flips_are_drawn_and_agree_with_the_exact_test(monkeypatch: pytest.MonkeyPatch) -> None:
    differences = [0.11, -0.23, 0.31, 0.47, -0.05, 0.29, 0.13, 0.61, -0.37, 0.21]
    exact = permutation_test(differences)
    monkeypatch.setattr(statistics, "MOST_SUMS", 10)
    drawn = permutation_test(differences)
    assert exact.exact and not drawn.exact
    assert exact.p == pytest.approx(enumerated(differences))
    assert drawn.p == pytest.approx(exact.p, abs=0.015) and drawn == permutation_test(differences)


def test_the_interval_is_that_of_the_mean_of_many_values() -> None:
    values = [((7 * n) % 101) / 101 for n in range(400)]
    found = estimate(values)
    deviation = math.sqrt(sum((value - found.mean) ** 2 for value in values) / len(values))
    assert found.interval is not None
    low, high = found.interval
    assert low == pytest.approx(found.mean - 1.96 * deviation / 20, abs=0.005)
    assert high == pytest.approx(found.mean + 1.96 * deviation / 20, abs=0.005)
    assert found == estimate(values)


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=12))
@settings(max_examples=30)
def test_an_interval_lies_within_the_values_and_around_their_mean(values: list[float]) -> None:
    found = estimate(values)
    assert found.n == len(values)
    if found.interval is not None:
        low, high = found.interval
        assert min(values) - 1e-9 <= low <= high <= max(values) + 1e-9


@pytest.mark.parametrize(("value", "end"), [(1.0, 0), (0.0, 1)])
def test_equal_shares_have_the_exact_binomial_interval(value: float, end: int) -> None:
    """The end is where so extreme a result has a chance of 2.5 %."""
    found = estimate([value] * 12, share=True)
    assert found.interval is not None
    chance = found.interval[end] if value else 1 - found.interval[end]
    assert chance**12 == pytest.approx(0.025) and found.interval[1 - end] == value
    assert estimate([0.5] * 3, share=True).interval is None and estimate([value] * 12).interval is None
