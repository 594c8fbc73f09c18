"""Answers are compared in units of the reference: no size is too small, or too large, to tell two of them apart."""

import math
from itertools import combinations, product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astune.config.judges import TaskJudgeConfig
from astune.task_judge.answer_text import answer_text
from astune.task_judge.math import worker
from astune.task_judge.math.compare import Relation, compare, for_algebra
from astune.task_judge.math.judge import MathAnswerAsJudge
from astune.task_judge.math.normalise import normalise
from astune.task_judge.math.quantity import read_quantity
from tests.rows import each_row

TINY = [
    "1.6e-16",
    r"1.6\times 10^{-17}",
    "10^{-16}",
    "e^{-36}",
    r"\frac{\pi}{10^{16}}",
    r"\sqrt{2}\cdot 10^{-96}",
    r"\sqrt{10^{16}+1}-10^8",
]


def is_equal(reference: str, answer: str) -> bool:
    """What the judge finds, without its processes."""
    expected, given = normalise(reference), normalise(answer)
    relation = compare(expected, given)
    if relation is not Relation.ALGEBRA:
        return relation is Relation.EQUAL
    number = read_quantity(expected)
    half = None if number is None or number.half is None else str(number.half)
    return worker.equal(for_algebra(expected), for_algebra(given), half) is True


@pytest.mark.fault("Judges", "two tiny formulas differ by a factor of ten, or of 10^80", "they are not equal")
@each_row(
    "place",
    [
        *("{}", "({})x", r"\{{{}, 2\}}", "({}, 2)", "[0, {}]", r"\begin{{pmatrix}} {} & 1 \\ 0 & 1 \end{{pmatrix}}"),
        *("x < {}", "x = {}", "y = ({})x", "({})i", "1 + {}", r"3^{{{}}}"),
    ],
)
def test_tiny_answers_differ_wherever_they_stand(place: str) -> None:
    tiny = TINY[2:] if place in ("1 + {}", r"3^{{{}}}") else TINY  # sympy adds decimals in floating point
    written = [place.format(each) for each in tiny]
    for reference, answer in combinations(written, 2):
        assert not is_equal(reference, answer), (reference, answer)
    assert all(is_equal(each, each) for each in written)


PAIRS = [
    ("2", "2.0"),
    ("2", "3"),
    ("1/3", "0.333333"),
    ("1/3", "0.3333333333333333"),
    ("0.3", "0.30000000000000004"),
    (r"\sqrt{2}", r"\frac{2}{\sqrt{2}}"),
    (r"\sqrt{2}", "1.41421"),
    (r"\sqrt{5+2\sqrt{6}}", r"\sqrt{2}+\sqrt{3}"),
    (r"\pi", r"\frac{355}{113}"),
    ("x^2-1", "(x-1)(x+1)"),
    ("x^2-1", "(x-1)(x+2)"),
    ("0.3x", "0.1x+0.2x"),
    ("1+i", "1-i"),
]
UNSCALED = {pair: is_equal(*pair) for pair in PAIRS}


@given(st.sampled_from(PAIRS), st.integers(-80, 80).filter(bool))
@settings(max_examples=30, deadline=None)
def test_what_equals_does_so_at_every_scale(pair: tuple[str, str], power: int) -> None:
    one, other = (rf"({each})\cdot 10^{{{power}}}" for each in pair)
    assert is_equal(one, other) is UNSCALED[pair]
    assert is_equal(rf"\{{{one}, x\}}", rf"\{{x, {other}\}}") is UNSCALED[pair]


@given(st.floats(1e-300, 1e300), st.floats(1e-300, 1e300), st.sampled_from(["{}", "{}x", r"\{{{}, 2\}}"]))
@settings(max_examples=60, deadline=None)
def test_floats_are_equal_if_they_are_the_same_but_for_noise(a: float, b: float, place: str) -> None:
    same = abs(a - b) <= 1e-12 * max(a, b)
    assert is_equal(place.format(a), place.format(b)) is same
    assert is_equal(place.format(a), place.format(a))


EXACT = {"1/3": 1 / 3, r"\frac{2}{7}": 2 / 7, r"\sqrt{2}": 2**0.5, r"\frac{\pi}{4}": math.pi / 4, "e^2": math.e**2}
FRACTIONS = ("1/3", r"\frac{2}{7}")
PLACES = ["{}", r"\{{{}, 5\}}", "({}, 5)", "[0, {}]", "x = {}", "({})x"]


@each_row(("digits", "place"), list(product([2, 4, 6, 8], PLACES)))
def test_a_rounding_counts_only_where_the_reference_is_one(digits: int, place: str) -> None:
    for exact, value in EXACT.items():
        rounded = f"{value:.{digits}g}"
        assert not is_equal(place.format(exact), place.format(rounded)), (exact, rounded)
        if place == "{}":
            assert is_equal(f"about {rounded}", exact)
            assert is_equal(rounded, exact) is (digits >= 7 - (exact in FRACTIONS))
        assert is_equal(place.format(exact), place.format(repr(value)))


async def test_a_number_that_a_workflow_returns_has_all_its_digits(make_episode: Any) -> None:
    for value, reference in [(1 / 6, "1/6"), (1e-20 / 7, r"\frac{1}{7\cdot 10^{20}}"), (0.1 + 0.2, "0.3")]:
        episode = make_episode(value, reference)
        verdict = await MathAnswerAsJudge(TaskJudgeConfig()).judge(episode.task, episode)
        assert verdict.reward == 1.0, verdict.reason
    episode = make_episode(sum([0.1] * 100))
    assert answer_text(episode.task, episode) == "10"
