"""The coding rate is what its formula says, and the greedy choice by it keeps its promises."""

import math
import random
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astune.rubrics.coding_rate import ERROR, SMALLEST_GAIN, coding_rate, select_criteria
from astune.rubrics.similarity import gram

TEXTS = [
    "Mentions the unit of the quantity.",
    "The unit of the quantity is mentioned.",
    "Is at most 40 words long.",
    "Does not apologise.",
    "States the next step.",
    "A next step for the user is stated.",
    "Quotes the order number.",
    "Ends with a question.",
]
LIKENESS = gram(TEXTS)
subsets = st.lists(st.sampled_from(range(len(TEXTS))), unique=True, min_size=1, max_size=6)


def within(chosen: list[int]) -> list[list[float]]:
    return [[LIKENESS[i][j] for j in chosen] for i in chosen]


def determinant(matrix: list[list[float]]) -> float:
    """By its definition, the sum over all permutations."""
    size = len(matrix)
    total = 0.0
    for order in permutations(range(size)):
        swaps = sum(order[i] > order[j] for i in range(size) for j in range(i + 1, size))
        total += (-1) ** swaps * math.prod(matrix[i][order[i]] for i in range(size))
    return total


@given(subsets.filter(lambda chosen: len(chosen) <= 5), st.floats(0.1, 2.0))
@settings(deadline=None)
def test_the_coding_rate_is_half_the_logarithm_of_the_determinant(chosen: list[int], eps: float) -> None:
    matrix = [[(i == j) + value / eps**2 for j, value in enumerate(row)] for i, row in enumerate(within(chosen))]
    assert coding_rate(within(chosen), eps) == pytest.approx(0.5 * math.log(determinant(matrix)), abs=1e-9)


def test_vectors_that_share_nothing_add_the_same_and_a_copy_adds_less() -> None:
    alone = coding_rate([[1.0]])
    assert alone == pytest.approx(0.5 * math.log(1 + 1 / ERROR**2))
    assert coding_rate([[1.0, 0.0], [0.0, 1.0]]) == pytest.approx(2 * alone)
    assert coding_rate([[1.0, 1.0], [1.0, 1.0]]) == pytest.approx(0.5 * math.log(1 + 2 / ERROR**2))
    assert coding_rate([]) == 0.0


@given(subsets, st.data())
def test_a_criterion_never_lowers_the_rate_and_adds_less_to_more(chosen: list[int], data: st.DataObject) -> None:
    *larger, new = chosen
    smaller = data.draw(st.lists(st.sampled_from(larger), unique=True)) if larger else []
    gain_of_larger = coding_rate(within([*larger, new])) - coding_rate(within(larger))
    gain_of_smaller = coding_rate(within([*smaller, new])) - coding_rate(within(smaller))
    assert -1e-12 <= gain_of_larger <= gain_of_smaller + 1e-12


@given(st.integers(0, 10_000))
@settings(deadline=None, max_examples=20)
def test_each_choice_has_the_largest_product_of_what_it_adds_and_its_help(seed: int) -> None:
    rng = random.Random(seed)
    words = "refund parcel depot label courier invoice receipt voucher address discount".split()  # noqa: SIM905
    texts = [" ".join(rng.sample(words, 4)) for _ in range(8)]
    helps = [rng.uniform(0.1, 0.4) for _ in texts]
    likeness = gram(texts)

    def rate(chosen: list[int]) -> float:
        return coding_rate([[likeness[i][j] for j in chosen] for i in chosen])

    chosen = select_criteria(texts, helps, at_most=8, seed=0)
    for count in range(len(chosen)):
        done = chosen[:count]
        products = {i: (rate([*done, i]) - rate(done)) * helps[i] for i in range(8) if i not in done}
        assert products[chosen[count]] == pytest.approx(max(products.values()), abs=1e-9)


def test_what_does_not_help_is_never_taken() -> None:
    assert select_criteria(TEXTS[:3], [0.0, -0.2, 0.1], at_most=3, seed=0) == [2]
    assert select_criteria(TEXTS[:3], [0.0, -0.2, -0.1], at_most=3, seed=0) == []
    assert select_criteria([], [], at_most=3, seed=0) == []


def test_it_stops_where_a_criterion_adds_little_beside_the_first() -> None:
    texts, little = [TEXTS[2], TEXTS[3]], 0.99 * SMALLEST_GAIN
    assert select_criteria(texts, [1.0, little], at_most=2, seed=0) == [0]
    assert select_criteria(texts, [1.0, 1.01 * SMALLEST_GAIN], at_most=2, seed=0) == [0, 1]


def test_at_most_bounds_the_choice() -> None:
    for at_most in range(len(TEXTS) + 1):
        assert len(select_criteria(TEXTS, [1.0] * len(TEXTS), at_most, seed=0)) == at_most


@given(st.permutations(range(len(TEXTS))), st.lists(st.sampled_from([-0.1, 0.1, 0.2, 0.3]), min_size=8, max_size=8))
def test_the_choice_does_not_depend_on_the_order_of_the_criteria(order: list[int], helps: list[float]) -> None:
    shuffled = select_criteria([TEXTS[i] for i in order], [helps[i] for i in order], 4, seed=7)
    assert [order[i] for i in shuffled] == select_criteria(TEXTS, helps, 4, seed=7)


def test_the_seed_alone_decides_between_equals() -> None:
    texts = [f"{first}{second}" * 3 for first, second in zip("abcdefgh", "ijklmnop", strict=True)]
    firsts = {seed: select_criteria(texts, [1.0] * 8, 1, seed)[0] for seed in range(30)}
    assert firsts == {seed: select_criteria(texts, [1.0] * 8, 1, seed)[0] for seed in range(30)}
    assert len(set(firsts.values())) > 3
