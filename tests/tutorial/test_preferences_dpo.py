"""The tutorial's pairs are what its script writes, and its command prefers the right call in each."""

import json
from pathlib import Path

import pytest

pytest.importorskip("agentscope")
pytest.importorskip("torch")

from astune.monitor import read_metrics
from astune.support.resources import tutorial_dir
from tests.tutorial.small import SMALL, commands, run
from tutorial.math_agent.calculator import calculator
from tutorial.preferences_dpo.make_pairs import pairs

FOLDER = tutorial_dir() / "preferences_dpo"
ROWS = [json.loads(line) for line in (FOLDER / "pairs.jsonl").read_text(encoding="utf-8").splitlines()]


def test_the_file_is_what_the_script_writes_and_shows_nothing_that_is_held_out() -> None:
    assert list(pairs()) == ROWS
    text = (tutorial_dir() / "math_agent" / "data" / "heldout.jsonl").read_text(encoding="utf-8")
    held_out = {json.loads(line)["query"] for line in text.splitlines()}
    assert len(ROWS) == 64 and not held_out & {row["messages"][1]["content"] for row in ROWS}


def called(message: dict) -> list[str]:
    (call,) = message["tool_calls"]
    return json.loads(call["function"]["arguments"])["expression"].split()


def test_the_answers_of_a_pair_differ_in_the_sign_alone() -> None:
    for row in ROWS:
        (left, sign, right), (other_left, other_sign, other_right) = called(row["chosen"]), called(row["rejected"])
        assert (left, right) == (other_left, other_right) and sign != other_sign
        for said, result in zip(row["messages"][2::2], row["messages"][3::2], strict=True):
            assert result["content"] == calculator(" ".join(called(said)))


def test_the_command_learns_to_prefer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (train,) = commands(FOLDER / "README.md")
    small = ("trainer.total_steps=5", "trainer.warmup_steps=0", "trainer.lr_schedule=constant", "evaluation.every=5")
    assert run(train, *SMALL, *small) == 0
    metrics = read_metrics(tmp_path / "runs" / "preferences_dpo" / "preferences_dpo" / "metrics.jsonl")
    learned = [row for row in metrics if "preference/margin" in row]
    assert learned[0]["preference/margin"] == 0 and learned[0]["loss"] == pytest.approx(0.6931, abs=1e-4)
    assert learned[-1]["preference/accuracy"] >= 0.9 and learned[-1]["loss"] < 0.68
    assert learned[-1]["preference/chosen"] > 0 > learned[-1]["preference/rejected"]
    assert not any("weight_sum" in row for row in metrics)  # a loss over whole answers gives tokens their weights
    assert [row["eval/greedy/tasks"] for row in metrics if "eval/greedy/tasks" in row] == [2]
