from hypothesis import given
from hypothesis import strategies as st

from tests.rows import each_row
from tutorial.math_agent.calculator import calculator


@each_row(
    ("expression", "result"),
    [
        ("12 * 7", "84"),
        ("(2 + 3) * 4 - 6 / 2", "17"),
        ("10 / 4", "2.50"),
        ("3 - 5", "-2"),
        ("2 - -3", "5"),
        ("-3.5 * 2", "-7"),
        ("1 / 0", "Error: division by zero."),
        ("9" * 15 + " + 1", "Error: the result is too large."),
        ("9" * 190 + ". * 9.", "Error: the result is too large."),
        ("9" * 199 + "*9", "Error: '" + "9" * 40 + "' is not arithmetic with numbers, + - * / and brackets."),
    ],
)
def test_arithmetic_is_worked_out(expression, result):
    assert calculator(expression) == result


@each_row(
    "expression",
    [
        "",
        "2 +",
        "two",
        "2 ** 9",
        "7 // 2",
        "1_000",
        "abs(3)",
        "5(3)",
        "'a' * 3",
        "2, 3",
        "012",
        "().__class__",
        "\n1",
        "(" * 199,
    ],
)
def test_what_is_not_arithmetic_gets_an_error_for_the_model_to_read(expression):
    assert calculator(expression).startswith("Error: ")


@given(st.text(alphabet="0123456789.+-*/() e_,ab", max_size=60))
def test_any_text_gives_a_number_or_an_error(text):
    result = calculator(text)
    assert result.startswith("Error: ") or float(result) is not None
