"""The zoo: what models and data sets write for a reference, right or wrong by mathematics and common sense. What is of
the kind `text` is a whole output of a model, else an answer alone. `question` is given where it matters."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from astune.config.judges import TaskJudgeConfig
from astune.errors import JudgeError
from astune.task_judge import MathAnswerAsJudge
from astune.types import Episode

ROWS = [json.loads(line) for line in Path(__file__).with_name("zoo.jsonl").read_text("utf-8").splitlines()]
ZOO = [(row, answer, label) for row in ROWS for label in ("right", "wrong") for answer in row.get(label, ())]

NOT_SEEN_AS_EQUAL = {
    ("30", "30 \\frac{m}{s}"): "a fraction of units",
    ("2x > 6", "x > 3"): "a reference that is not solved",
    ("i", "\\sqrt{-1}"): "math-verify takes i alone for a variable",
    ("e^{i\\pi}", "-1"): "math-verify takes e and i apart for variables",
    ("1011_2", "1011_{\\text{two}}"): "the base as a word",
    ("9", "13_6"): "the number in another base than the reference",
    ("72", "seventy-two"): "a number in words",
    ("12", "twelve"): "a number in words",
    ("seven", "7"): "a number in words",
    ("72", "七十二"): "a number in Chinese numerals",
    ("1/2", "二分之一"): "a fraction in Chinese numerals",
    ("\\log_{2} 5", "log(5,2)"): "a logarithm with its base behind a comma",
    ("\\frac{n(n+1)}{2}", "n*(n+1)//2"): "whole division",
}
"""Right answers that get no reward. There is no wrong one that gets a reward."""


@pytest.fixture(scope="module")
def rewards(make_episode: Callable[..., Episode]) -> list[float | JudgeError]:
    async def judge_all() -> list[float | JudgeError]:
        judge = MathAnswerAsJudge(TaskJudgeConfig())
        return await asyncio.gather(*(reward(judge, row, answer) for row, answer, _ in ZOO))

    async def reward(judge: MathAnswerAsJudge, row: dict[str, Any], answer: str) -> float | JudgeError:
        output = answer if row["kind"] == "text" else f"<answer>{answer}</answer>"
        episode = make_episode(output, row["reference"])
        task = replace(episode.task, query=row.get("question", episode.task.query))
        try:
            return (await judge.judge(task, episode)).reward
        except JudgeError as error:
            return error

    return asyncio.run(judge_all())


@pytest.mark.fault("Judges", "an answer only looks right: 72 tenths, 1=1 for x=5, a box in the thinking", "reward 0")
@pytest.mark.fault("Judges", "an answer is taken back or one of two: 5? No: 6; \\boxed{5} or \\boxed{6}", "reward 0")
@pytest.mark.fault(
    "Judges", "a number and a numeral of any language: 5 Millionen, 5億; a ratio, a date", "not the number"
)
@pytest.mark.fault("Judges", "a right answer is written in an unusual way: 9*pi, CRLF, `A: 18`", "reward 1")
@pytest.mark.fault(
    "Judges", "an answer repeats the question: an integral, a binomial", "0; `must_be_evaluated: false` allows it"
)
def test_an_answer_of_the_zoo_gets_the_reward_that_common_sense_gives_it(rewards: list[float | JudgeError]) -> None:
    judged = zip(ZOO, rewards, strict=True)
    wrong = {
        (row["reference"], answer): row["kind"] for (row, answer, label), got in judged if got != (label == "right")
    }
    assert wrong.keys() == NOT_SEEN_AS_EQUAL.keys(), wrong
