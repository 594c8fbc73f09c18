import re
from itertools import islice

import pytest

from astune.support.resources import tutorial_dir
from tutorial.math_agent import make_tasks
from tutorial.math_agent.calculator import calculator

DATA = tutorial_dir() / "math_agent" / "data"


def told(split, count, seed):
    return list(islice(make_tasks.problems(split, seed), count))


@pytest.mark.parametrize(("split", "count"), [("train", 2000), ("heldout", 400)])
def test_the_files_are_what_the_script_writes(tmp_path, split, count):
    make_tasks.write(tmp_path / "new.jsonl", split, count, seed=0)
    assert (tmp_path / "new.jsonl").read_bytes() == (DATA / f"{split}.jsonl").read_bytes()


def test_warm_up_training_and_heldout_share_no_text_and_no_numbers():
    # Far more of the warm-up than the shipped model was shown.
    splits = {
        "warmup": told("warmup", 100_000, seed=0),
        "train": told("train", 2000, seed=0),
        "heldout": told("heldout", 400, seed=0),
    }
    texts = {split: {problem.query for problem in problems} for split, problems in splits.items()}
    numbers = {split: {(problem.kind, problem.numbers) for problem in problems} for split, problems in splits.items()}
    for one, other in [("warmup", "train"), ("warmup", "heldout"), ("train", "heldout")]:
        assert not texts[one] & texts[other]
        assert not numbers[one] & numbers[other]


def test_the_plan_worked_out_on_the_calculator_gives_the_answer_and_uses_every_number_of_the_text():
    for problem in told("train", 1000, seed=7):
        values = dict(zip("abcd", map(str, problem.numbers), strict=False))
        for left, sign, right in problem.plan:
            values["r"] = calculator(f"{values[left]} {sign} {values[right]}")
        assert values["r"] == str(problem.answer)
        assert problem.answer > 0
        assert sorted(map(int, re.findall(r"\d+", problem.query))) == sorted(problem.numbers)
