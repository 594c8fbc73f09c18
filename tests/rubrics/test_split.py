"""Every example stands on one side, and equal questions on the same."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astune.errors import TaskError
from astune.rubrics.examples import Examples, RubricExample
from astune.rubrics.split import split_examples


def examples(kind, queries, values):
    pairs = zip(queries, values, strict=True)
    if kind == "scored":
        rows = [RubricExample(f"e{n}", query, (f"a{n}",), (float(good),)) for n, (query, good) in enumerate(pairs)]
    else:
        rows = [RubricExample(f"e{n}", query, ("a", "b"), (1.0, 0.0)) for n, (query, _) in enumerate(pairs)]
    return Examples(Path("examples.jsonl"), "0", kind, tuple(rows))


@given(
    st.sampled_from(["scored", "paired"]),
    st.lists(st.tuples(st.integers(0, 30), st.booleans()), min_size=5, max_size=60),
    st.integers(0, 5),
)
def test_each_example_stands_once_and_equal_questions_together(kind, rows, seed):
    given_examples = examples(kind, [f"Q  {query}" for query, _ in rows], [good for _, good in rows])
    try:
        split = split_examples(given_examples, seed)
    except TaskError:
        return
    parts = (split.train, split.dev, split.test)
    assert sorted(one.id for part in parts for one in part) == sorted(one.id for one in given_examples.all)
    questions = [{one.query for one in part} for part in parts]
    assert all(questions) and not (
        questions[0] & questions[1] | questions[0] & questions[2] | questions[1] & questions[2]
    )
    if kind == "scored":
        assert all({one.good for one in part} == {True, False} for part in parts[:2])
    assert split == split_examples(given_examples, seed)


@pytest.mark.parametrize("goods", [[1, 1, 1, 0, 0], [0, 0, 0, 1, 1]])
def test_five_examples_are_enough(goods):
    split = split_examples(examples("scored", [f"q{n}" for n in range(5)], goods), 0)
    assert [len(part) for part in (split.train, split.dev, split.test)] == [2, 2, 1]


def test_half_is_to_learn_from_and_a_quarter_each_to_choose_by_and_to_test_on():
    split = split_examples(examples("scored", [f"q{n}" for n in range(40)], [n % 4 == 0 for n in range(40)]), 1)
    assert [len(part) for part in (split.train, split.dev, split.test)] == [20, 10, 10]
    assert [sum(one.good for one in part) for part in (split.train, split.dev, split.test)] == [5, 3, 2]


def test_another_seed_is_another_split():
    many = examples("paired", [f"q{n}" for n in range(40)], [1] * 40)
    assert split_examples(many, 0).digest != split_examples(many, 1).digest


@pytest.mark.parametrize(
    ("queries", "goods", "message"),
    [
        (["q1", "q2"] * 5, [1, 0] * 5, "2 different questions, expected at least 3"),
        ([f"q{n}" for n in range(8)], [1] + [0] * 7, "expected at least 2 good and 2 bad answers"),
    ],
)
def test_what_cannot_be_split_is_told(queries, goods, message):
    with pytest.raises(TaskError, match=message):
        split_examples(examples("scored", queries, goods), 0)
