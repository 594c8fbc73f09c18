import sys
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sympy import srepr

from astune.task_judge.math import worker as math_worker
from astune.task_judge.math.compare import Relation, compare, for_algebra
from astune.task_judge.math.final_answer import (
    LOOKED_AT,
    FinalAnswer,
    extract_answer,
    outside_thinking,
    reference_answer,
)
from astune.task_judge.math.normalise import normalise
from astune.task_judge.math.quantity import read_quantity
from astune.task_judge.math.units import UNITS
from tests.rows import each_row

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


@pytest.mark.fault("Judges", "any text for an answer", "read or told to be unreadable; nothing raises")
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


@pytest.mark.fault(
    "Judges",
    "an answer of 50,000 boxes, open braces or backslashes",
    "read in linear time, its last 100,000 characters",
)
@each_row(
    "piece",
    [
        *(r"\boxed{72} ", r"\boxed{", "{", "\\", "$", "<think>", "</think>", "<answer>", "A: 1\n"),
        *("✅", "▶", "=>", "1️⃣", "Answer → ", "❌ "),
    ],
)
def test_of_a_very_long_text_only_the_end_is_looked_at(piece: str) -> None:
    found = extract_answer(piece * 50_000 + r"\boxed{72}", "boxed")
    if piece == "<think>":
        assert found is None
    else:
        assert found is not None and found.text.endswith("72") and len(found.text) <= LOOKED_AT


def test_nested_boxes_are_each_looked_at_once() -> None:
    found = extract_answer(r"\boxed{" * 10_000 + "72" + "}" * 10_000, "boxed")
    assert found is not None and found.text.startswith(r"\boxed{") and found.text.count("72") == 1


@each_row(
    ("text", "said"),
    [
        ("a<think>b</think>c", "ac"),
        ("a<think>b", "a"),
        ("a</think>b", "b"),
        ("a<think>b<think>c</think>d", "ad"),
        ("<reasoning>a</reasoning>b<thought>c</thought>d", "bd"),
        ("[THINK]a[/THINK]b", "b"),
        ("a < b, [1]", "a < b, [1]"),
    ],
)
def test_what_was_only_thought_was_not_said(text: str, said: str) -> None:
    assert outside_thinking(text) == said


@each_row(
    ("text", "found"),
    [
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\left\{ x \right.}", r"\left\{ x \right."),
        (r"\boxed{1} then \fbox{2}", "2"),
        (r"\boxed{1} and \fbox{2}", "1, 2"),
        (r"$\boxed{(1,2)}$ \quad \text{and} \quad $\boxed{(3,4)}$", "(1,2), (3,4)"),
        (r"\boxed{1} or \boxed{2}", "1, 2"),
        (r"\boxed{1} or maybe \boxed{1}", "1"),
        (r"\boxed{1} \boxed{}", None),
        (r"\boxed{1} and \boxed{2", "1"),
        (r"\boxed{a\fbox{b}c}", r"a\fbox{b}c"),
    ],
)
def test_braces_in_a_box_nest_and_neighbouring_boxes_are_a_list(text: str, found: str | None) -> None:
    answer = extract_answer(text, "boxed")
    assert (answer and answer.text) == found


@each_row(
    ("text", "found"),
    [
        ("Answer: 72", "72"),
        ("**Final Answer:** 72", "72"),
        ("### Answer\n\n72", "72"),
        ("Our final answer is 72, because 6*12 is.", "72"),
        ("答案是72。", "72"),
        ("**最终答案**：72", "72"),  # noqa: RUF001
        ("The answer is 71.\nNo:\nAnswer: 72", "72"),
        ("My answer: 72", None),
        ("答案不是72", None),
    ],
)
def test_a_sentence_or_a_line_says_what_the_answer_is(text: str, found: str | None) -> None:
    answer = extract_answer(text, "the_answer_is")
    assert (answer and answer.text) == found


MARKERS = ["Final answer:", "**Answer:**", "The answer is", "Answer", "答案：", "### Final Answer\n\n", "A:"]  # noqa: RUF001


@pytest.mark.fault("Judges", "an emoji, a bullet or an arrow before the answer or its marker", "the answer is read")
@each_row("sign", ["✅", "✔️", "➡️", "→", "=>", "⇒", "•", "▶", "🎯", "1️⃣", "∴", "👩‍🏫", "⭐ ⭐"])
def test_signs_that_only_decorate_an_answer_are_passed_over(sign: str) -> None:
    arrow = sign if sign in ("➡️", "→", "=>", "⇒", "▶") else "→"
    for marker in MARKERS:
        behind = arrow if marker == "Answer" else ""
        found = extract_answer(f"So it is.\n{sign} {marker} {behind} 72 🎉", "the_answer_is")
        assert found is not None and found.text.removeprefix("A: ").strip() == "72", marker
    found = extract_answer(f"Answer: {arrow} **72** ✅", "auto")
    assert found is not None and found.text == "72"
    for text in (f"\\boxed{{{arrow} 72}} 🎉", f"<answer>{arrow} 72 ✅</answer>", f"#### {arrow} 72 ✅", f"{arrow} 72"):
        found = extract_answer(text, "auto")
        assert found is not None and found.text == "72", text


@pytest.mark.fault("Judges", "an answer is crossed out: ❌ Answer: 72, \\boxed{72} ❌, 🚫 72", "no answer")
@each_row("sign", ["❌", "✗", "🚫", "👎", "❓", "☐", "↛", "⛔️"])
def test_a_sign_that_refuses_an_answer_is_not_passed_over(sign: str) -> None:
    texts = [f"{sign} {marker} 72" for marker in MARKERS]
    texts += [f"Answer {sign} 72", f"Answer: {sign} 72", f"{sign} 72", f"#### {sign} 72"]
    texts += [f"Answer: 72 {sign}", f"\\boxed{{72}} {sign}", "Answer ≠ 72"]
    for text in texts:
        found = extract_answer(text, "auto")
        assert found is None or compare("72", normalise(found.text)) is not Relation.EQUAL, text
    found = extract_answer(f"✅ Answer: 71\n{sign} Answer: 72", "auto")
    assert found == FinalAnswer("71", "the_answer_is")


@each_row(
    ("text", "found"),
    [
        ("Answer: ➖5", "➖5"),  # noqa: RUF001  a heavy minus
        ("Answer: △ABC", "△ABC"),
        ("Answer: -5", "-5"),
        ("Answer: >= 5", ">= 5"),
        ("Answer: 72 → 73", "72 → 73"),
        ("Answer: ❶", "❶"),
        ("✅", "✅"),
    ],
)
def test_a_sign_that_is_a_part_of_the_answer_stays(text: str, found: str) -> None:
    answer = extract_answer(text, "auto")
    assert answer is not None and answer.text == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("6 * 12 = 72 clips, I think", "72"),
        ("from $1,000 to $-1,234.50.", "-1,234.50"),
        ("about 3/4 of it", "3/4"),
        ("none", None),
    ],
)
def test_the_last_number_is_an_answer_only_where_it_is_asked_for(text: str, found: str | None) -> None:
    answer = extract_answer(text, "last_number")
    assert (answer and answer.text.replace("$", "")) == found
    assert extract_answer(f"{text}; who knows.", "auto") is None


@each_row(
    ("reference", "answer", "relation"),
    [
        ("72", "72 clips", Relation.EQUAL),
        ("72", "72 in total", Relation.EQUAL),
        ("72", "72 in", Relation.EQUAL),
        ("72 cm", "72 in", Relation.DIFFERENT),
        ("72", "I don't know", Relation.UNREAD),
        ("Tuesday", "Thursday", Relation.UNREAD),
        ("72", "x" * 501, Relation.UNREAD),
        ("72", "72 73", Relation.UNREAD),
        ("5 km", "5000 m", Relation.EQUAL),
        ("5 m/s", "18 km/h", Relation.EQUAL),
        ("5 km", "5 m^2", Relation.DIFFERENT),
        ("x+1", "1+x", Relation.ALGEBRA),
        ("1/3", "0.333333", Relation.ALGEBRA),
    ],
)
def test_what_cannot_be_read_is_told_from_what_is_wrong(reference: str, answer: str, relation: Relation) -> None:
    assert compare(reference, answer) is relation


@given(st.sampled_from(sorted(UNITS)), st.sampled_from(sorted(UNITS)), st.integers(1, 10**6))
def test_units_of_one_dimension_convert_and_others_contradict(one: str, other: str, number: int) -> None:
    there = read_quantity(f"{number} {one}")
    back = read_quantity(f"{number * UNITS[one].factor / UNITS[other].factor} {other}")
    assert there is not None and back is not None
    assert there.equals(back) is (UNITS[one].dimension == UNITS[other].dimension)


FORMULAS = [
    r"x^2+40x+63",
    r"[98,113)",
    r"\frac{67\pi}{64}",
    r"f^{-1}(x)+g^2",
    r"x_1^2+x_{2}",
    r"a^b^c",
    r"x^{2}^3",
    r"2^{3^2}",
    r"x^{-1}y^2z",
    r"\{70,92,79\}",
    r"e^{2x}",
    r"\begin{pmatrix}1&x^2\\3&4\end{pmatrix}",
    r"-x^2",
    r"3x^2y+1",
    r"|x^2-1|",
    r"n!+k^2",
    r"x^12",
    r"x^{y^2}",
    r"\sum_{k=1}^{n}k^2",
    r"\log_2x^2",
    r"\sin^2x",
    r"x^2=4",
    r"1<x^2<4",
    r"123456789012345678901234567890",
    r"007",
    r"1,234x",
    r"x^2!",
    r"(-\infty,-1]\cup[1,\infty)",
    r"A^{-1}B^T",
    r"\sqrt{x^2+y^2}",
    r"ab^2",
    r"(x+1)^2/x^3",
    r"x^\pi",
    r"y^{\frac{1}{2}}",
]


@each_row("formula", FORMULAS)
def test_reading_in_two_stages_finds_what_one_slow_stage_finds(formula: str) -> None:
    plain = math_worker.TwoStageReader.__mro__[1](is_real=True).parse(formula)
    assert srepr(math_worker.TwoStageReader(is_real=True).parse(formula)) == srepr(plain)


@each_row(
    ("reference", "answer", "equal"),
    [
        ("x^2+40x+63", "63+40x+x^2", True),
        ("x^2+40x+63", "63+41x+x^2", False),
        (r"\sqrt{x^2}", "|x|", True),
        (r"\sqrt{2}", "1.41421356237", True),
        (r"\sqrt{2}", "1.414214", False),
        ("50", r"50\%", True),
        (r"\frac{x^2-1}{x-1}", "x+1", True),
        ("(x+1)^3", "x^3+3x^2+3x+1", True),
        (r"\sin^2 x+\cos^2 x", "1", True),
        ("[2,5)", r"2 \le x < 5", True),
        (r"(3,\infty)", "2x > 6", False),
        ("72", "}{", None),
        ("y=2x+3", "y=3+2x", True),
        ("y=2x+3", "y=2x+4", False),
        ("y=2x+3", "2x-y+3=0", True),
        ("(x-7)(x+966)", "x^2+960x-6762", False),
        (r"\frac{1000}{3}", "333.333333", False),
    ],
)
def test_looking_at_values_first_changes_no_result(reference: str, answer: str, equal: bool | None) -> None:
    assert math_worker.equal(reference, answer) is equal


def test_automatic_extraction_prefers_the_box_then_the_tag_then_hashes_then_the_sentence() -> None:
    parts = ["The answer is 4", "#### 3", "<answer>2</answer>", r"\boxed{1}"]
    found = [extract_answer("\n".join(parts[:count]), "auto") for count in (4, 3, 2, 1)]
    assert [answer and answer.text for answer in found] == ["1", "2", "3", "4"]


@each_row("text", ["72 clips", "yes", r"\frac{1}{2} + x", "(1, 2)", "$72$"])
def test_a_text_that_is_nothing_but_an_answer_is_one(text: str) -> None:
    answer = extract_answer(text, "auto")
    assert answer is not None and answer.found_in == "plain"


@pytest.mark.parametrize(
    ("answer", "reference"),
    [("a #### b\n#### 1,000", "1,000"), (r"So $\boxed{\frac{1}{2}}$.", r"\frac{1}{2}"), (" 7 ", "7")],
)
def test_the_reference_stands_where_gsm8k_and_math_put_it(answer: str, reference: str) -> None:
    assert reference_answer(answer) == reference


@each_row(
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
