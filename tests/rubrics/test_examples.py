"""Examples are read as they are meant, and what is wrong is named with its line."""

import hashlib
import json
from pathlib import Path

import pytest

from astune.errors import TaskError
from astune.rubrics.examples import Examples, read_examples
from tests.rows import each_row


def write(path: Path, rows: list[object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def scored(*scores: object) -> list[object]:
    return [{"query": f"q{n}", "answer": f"a{n}", "score": score} for n, score in enumerate(scores)]


def read(tmp_path: Path, rows: list[object]) -> Examples:
    return read_examples(write(tmp_path / "examples.jsonl", rows))


def test_scores_are_put_on_a_scale_from_0_to_1(tmp_path):
    examples = read(tmp_path, scored(1, 5, 3, 2, 4))
    assert examples.kind == "scored"
    assert [one.values[0] for one in examples.all] == [0.0, 1.0, 0.5, 0.25, 0.75]
    assert [one.good for one in examples.all] == [False, True, True, False, True]
    assert examples.sha256 == hashlib.sha256(examples.path.read_bytes()).hexdigest()


def test_a_pair_has_the_better_answer_first(tmp_path):
    rows = [{"query": f"q{n}", "chosen": f"good {n}", "rejected": f"bad {n}", "reference": "r"} for n in range(5)]
    examples = read(tmp_path, rows)
    assert examples.kind == "paired"
    assert examples.all[0].answers == ("good 0", "bad 0")
    assert examples.all[0].orders == ((0, 1),) and examples.all[0].reference == "r"


def test_ranks_order_the_answers_and_equal_ranks_tell_nothing(tmp_path):
    row = {"query": "q", "answers": ["worst", "best", "middle", "middle too"], "ranks": [3, 1, 2, 2]}
    first = read(tmp_path, [{**row, "query": f"q{n}"} for n in range(5)]).all[0]
    assert first.answers == ("best", "middle", "middle too", "worst")
    assert {(first.answers[a], first.answers[b]) for a, b in first.orders} == {
        ("best", "middle"),
        ("best", "middle too"),
        ("best", "worst"),
        ("middle", "worst"),
        ("middle too", "worst"),
    }


def test_names_of_openjudge_are_known(tmp_path):
    pointwise = [{"query": f"q{n}", "response": f"a{n}", "label_score": n} for n in range(5)]
    labelled = [{"query": f"q{n}", "response": f"a{n}", "label": n % 2 == 0} for n in range(5)]
    assert [example.values for example in read(tmp_path, labelled).all] == [(1.0,), (0.0,), (1.0,), (0.0,), (1.0,)]
    listwise = [{"query": f"q{n}", "responses": ["b", "a"], "label_rank": [2, 1]} for n in range(5)]
    assert read(tmp_path, pointwise).all == read(tmp_path, scored(0, 1, 2, 3, 4)).all
    assert read(tmp_path, listwise).all[0].answers == ("a", "b")


def test_an_example_keeps_its_id_wherever_it_stands(tmp_path):
    rows = scored(1, 2, 3, 4, 5)
    assert {one.id for one in read(tmp_path, rows).all} == {one.id for one in read(tmp_path, rows[::-1]).all}


@pytest.mark.fault("Rubrics", "a labelled example is wrong", "an error that names file and line")
@each_row(
    ("rows", "message"),
    [
        (scored(1, 2, 3, 4), "examples.jsonl: 4 examples, expected 5 to 100"),
        (scored(1, 1, 1, 1, 1), "examples.jsonl: every score is 1; expected good and bad answers"),
        ([*scored(1, 2, 3, 4), {"query": "q", "answer": "a"}], "examples.jsonl:5: score: expected a number, got None"),
        (
            [*scored(1, 2, 3, 4), {"query": "q", "answer": "a", "scroe": 1}],
            "unknown key 'scroe'. Did you mean 'score'?",
        ),
        ([*scored(1, 2, 3, 4), {"query": "q"}], "examples.jsonl:5: expected {query, answer, score}"),
        ([*scored(1, 2, 3, 4), {"answer": "a", "score": 1}], "examples.jsonl:5: query: expected a text, got None"),
        (
            [*scored(1, 2, 3, 4), {"query": "q", "chosen": "a", "rejected": "b"}],
            "examples.jsonl:5: a paired example, expected a scored one as in",
        ),
        (
            [{"query": f"q{n}", "chosen": "same", "rejected": "same"} for n in range(5)],
            "examples.jsonl:1: two of the answers are the same text",
        ),
        (
            [{"query": f"q{n}", "answers": ["a", "b"], "ranks": [1]} for n in range(5)],
            "examples.jsonl:1: ranks: expected a number for each of the 2 answers",
        ),
        (
            [{"query": f"q{n}", "answers": ["a", "b"], "ranks": [1, 1]} for n in range(5)],
            "examples.jsonl:1: ranks: all are equal",
        ),
        ([{"query": f"q{n}", "answers": ["a"]} for n in range(5)], "answers: expected a list of at least two"),
        (
            [{"query": "q", "answer": f"a{n}", "score": score} for n, score in enumerate((True, 4, False, 2, 1))],
            "examples.jsonl:2: the label 4 is on a scale, but",
        ),
        (
            [{"query": "q", "answer": f"a{n}", "score": n, "label": True} for n in range(5)],
            "'label' and 'score' mean the same",
        ),
        (
            [{"query": f"q{n}", "answers": ["a", "b"], "ranks": [True, False]} for n in range(5)],
            "examples.jsonl:1: ranks: expected numbers, 1 for the best",
        ),
        ([{**row, "id": "same"} for row in scored(1, 2, 3, 4, 5)], "id 'same' stands in several lines"),  # type: ignore[dict-item]
        (
            [*scored(1, 2, 3, 4), {"query": "q", "answer": "a", "response": "b", "score": 1}],
            "examples.jsonl:5: 'response' and 'answer' mean the same",
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path, rows, message):
    with pytest.raises(TaskError) as error:
        read(tmp_path, rows)
    assert message in str(error.value)
