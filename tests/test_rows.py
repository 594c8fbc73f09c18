"""A test of a table fails where any row does, and says which."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rows import each_row


def failure_of(test, **fixtures) -> str:
    with pytest.raises(pytest.fail.Exception) as caught:
        test(**fixtures)
    return str(caught.value)


def test_all_rows_are_tried_and_those_that_failed_are_named():
    tried = []

    @each_row(("number", "even"), [(1, True), (2, True), pytest.param(3, True, id="three")])
    def is_even(number, even):
        tried.append(number)
        assert (number % 2 == 0) == even

    told = failure_of(is_even)
    assert tried == [1, 2, 3]
    assert "--- 1, True" in told and "--- three" in told and "--- 2" not in told
    assert told.endswith("2 of 3 rows failed")


def test_an_error_of_any_kind_fails_the_row_and_a_skip_skips_all():
    @each_row("raised", [ValueError("x"), pytest.fail.Exception("y")], ids=["error", "failure"])
    def raise_it(raised):
        raise raised

    told = failure_of(raise_it)
    assert "--- error" in told and "--- failure" in told

    @each_row("reason", ["not here"])
    def skip(reason):
        pytest.skip(reason)

    with pytest.raises(pytest.skip.Exception):
        skip()


async def test_a_coroutine_is_waited_for():
    @each_row("number", [1, 2])
    async def is_two(number):
        assert number == 2

    with pytest.raises(pytest.fail.Exception, match="1 of 2 rows failed"):
        await is_two()


def test_a_table_without_rows_or_a_name_that_the_test_does_not_take_is_a_mistake():
    mistakes = [("number", []), ("other", [1]), (("number", "other"), [(1, 2)]), ("number", [pytest.param(1, 2)])]
    for names, rows in mistakes:
        with pytest.raises((AssertionError, ValueError)):
            each_row(names, rows)(lambda number: None)
    with pytest.raises(AssertionError, match="has marks"):
        each_row("number", [pytest.param(1, marks=pytest.mark.xfail)])


@each_row("name", ["a", "b"])
@each_row("text", ["x", "y"])
def test_rows_do_not_see_each_other(name, text, tmp_path: Path, monkeypatch, capsys):
    """Of tables above each other every row meets every row."""
    assert list(tmp_path.iterdir()) == [] and capsys.readouterr().out == ""
    (tmp_path / "file").write_text(text)
    monkeypatch.setenv("ROWS_BEFORE", name)
    print(name)


@each_row("least", [0, 5])
@given(number=st.integers(0, 9))
def test_a_property_may_have_rows(least, number):
    assert max(number, least) >= least
