import sys
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astune.task_judge import math_worker
from astune.task_judge.math_answer import extract_answer, normalise, reference_answer
from astune.task_judge.math_compare import Relation, compare, for_algebra
from astune.task_judge.math_quantity import read_quantity

WHOLE = st.integers(-2_000_000, 2_000_000)
DECIMAL = st.decimals(-9999, 9999, places=3)


FEW = st.sampled_from([0, 1, 5, 50, 500, 1000, 1234567])
"""Few enough that two draws are often equal."""


@st.composite
def written_number(draw: st.DrawFn) -> str:
    value = draw(FEW | WHOLE | DECIMAL | st.sampled_from([0.5, 1234.5]))
    digits = f"{abs(value):,}" if draw(st.booleans()) else f"{abs(value)}"
    return draw(st.sampled_from(["", "-"])) + draw(st.sampled_from(["", r"\$"])) + digits


@given(written_number(), written_number())
@settings(max_examples=150, deadline=None)
def test_the_comparison_of_numbers_agrees_with_math_verify(reference: str, answer: str) -> None:
    assert compare(normalise(reference), normalise(answer)) is Relation.of(bool(math_worker.equal(reference, answer)))


# Whole percentages only: in math-verify -50% is not -50, 12.5% is not 12.5, and 1,000% is not 1000%.
PERCENTAGE = st.tuples(FEW, st.sampled_from(["", r"\%"])).map(lambda parts: f"{parts[0]}{parts[1]}")


@given(PERCENTAGE, PERCENTAGE)
@settings(max_examples=50, deadline=None)
def test_the_comparison_of_percentages_agrees_with_math_verify(reference: str, answer: str) -> None:
    assert compare(normalise(reference), normalise(answer)) is Relation.of(bool(math_worker.equal(reference, answer)))


@given(st.text())
def test_normalising_twice_changes_nothing(text: str) -> None:
    assert normalise(normalise(text)) == normalise(text)


@given(st.integers(-(10**12), 10**12), st.integers(1, 10**6))
def test_a_fraction_is_read_as_the_number_it_is(numerator: int, denominator: int) -> None:
    plain = read_quantity(f"{numerator}/{denominator}")
    latex = read_quantity(f"\\frac{{{numerator}}}{{{denominator}}}")
    assert plain is not None and latex is not None
    assert plain.value == latex.value == Fraction(numerator, denominator)


@given(st.integers(0, 10**15), st.integers(0, 10**15))
def test_whole_numbers_are_equal_only_if_they_are_the_same(a: int, b: int) -> None:
    assert compare(f"{a:,}", str(b)) is Relation.of(a == b)


@given(st.text(alphabet="abc {}\\<>/answer#boxed12$", max_size=200))
def test_no_text_breaks_the_extraction_or_the_comparison(text: str) -> None:
    found = extract_answer(text, "auto")
    assert isinstance(compare(normalise("72"), normalise(found.text if found else text)), Relation)


@pytest.mark.parametrize("text", [r"\boxed{" * 1_000, "{" * 5_000, "<answer>" * 1_000, "the answer is " * 500])
def test_extraction_stays_linear_in_text_that_repeats_itself(text: str) -> None:
    steps = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal steps
        steps += 1

    sys.setprofile(count)
    try:
        extract_answer(text, "auto")
    finally:
        sys.setprofile(None)
    assert steps < 20 * len(text)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\left\{ x \right.}", r"\left\{ x \right."),
        (r"\boxed{1} \fbox{2}", "2"),
        (r"\boxed{1} and \boxed{2", "1"),
        (r"\boxed{a\fbox{b}c}", r"a\fbox{b}c"),
    ],
)
def test_braces_in_a_box_nest(text: str, found: str) -> None:
    answer = extract_answer(text, "boxed")
    assert answer is not None and answer.text == found


def test_automatic_extraction_prefers_the_box_then_the_tag_then_hashes_then_the_sentence() -> None:
    parts = ["The answer is 4", "#### 3", "<answer>2</answer>", r"\boxed{1}"]
    found = [extract_answer("\n".join(parts[:count]), "auto") for count in (4, 3, 2, 1)]
    assert [answer and answer.text for answer in found] == ["1", "2", "3", "4"]


@pytest.mark.parametrize("text", ["72 clips", "yes", r"\frac{1}{2} + x", "(1, 2)", "$72$"])
def test_a_text_that_is_nothing_but_an_answer_is_one(text: str) -> None:
    answer = extract_answer(text, "auto")
    assert answer is not None and answer.found_in == "plain"


@pytest.mark.parametrize(
    ("answer", "reference"),
    [("a #### b\n#### 1,000", "1,000"), (r"So $\boxed{\frac{1}{2}}$.", r"\frac{1}{2}"), (" 7 ", "7")],
)
def test_the_reference_stands_where_gsm8k_and_math_put_it(answer: str, reference: str) -> None:
    assert reference_answer(answer) == reference


@pytest.mark.parametrize(
    ("text", "latex"),
    [
        ("72 clips", "72"),
        ("1,234.50", "1234.50"),
        ("2 1/2", r"\frac{5}{2}"),
        ("x+1", "x+1"),
        (r"9\pi square inches", r"9\pi"),
        ("x + 2 y", "x + 2 y"),
    ],
)
def test_algebra_gets_a_number_without_its_unit(text: str, latex: str) -> None:
    assert for_algebra(text) == latex


def test_each_gsm8k_answer_is_right_for_itself_and_wrong_for_its_neighbour() -> None:
    path = Path(__file__).parents[3] / "shared/data/gsm8k/train_1000.jsonl"
    if not path.exists():
        pytest.skip("the GSM8K sample is not on this machine")
    from astune.task_reader.jsonl import read_jsonl

    answers = [normalise(reference_answer(row["answer"])) for _, row in read_jsonl(path)]
    for answer, neighbour in pairwise(answers):
        assert compare(answer, answer + ".00") is Relation.EQUAL
        expected, other = read_quantity(answer), read_quantity(neighbour)
        assert expected is not None and other is not None
        assert compare(answer, neighbour) is Relation.of(expected.value == other.value)
