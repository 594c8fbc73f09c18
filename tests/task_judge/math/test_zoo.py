"""The zoo: what models and data sets write, labelled by mathematics and common sense. A case of the kind `text` is
the whole output of a model; of any other kind it is the answer alone. `question` is given where it matters."""

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

ZOO = [json.loads(line) for line in Path(__file__).with_name("zoo.jsonl").read_text("utf-8").splitlines()]

NOT_SEEN_AS_EQUAL = {
    "unit-11": "a fraction of units",
    "inequality-8": "a reference that is not solved",
    "complex-3": "math-verify takes i alone for a variable",
    "complex-12": "math-verify takes e and i apart for variables",
    "base-4": "the base as a word",
    "base-12": "the number in another base than the reference",
    "word-23": "a number in words",
    "word-24": "a number in words",
    "word-26": "a number in words",
    "chinese-13": "a number in Chinese numerals",
    "chinese-15": "a fraction in Chinese numerals",
    "python-130": "a logarithm with its base behind a comma",
    "python-133": "whole division",
}
"""Right answers that get no reward. There is no wrong one that gets a reward."""


@pytest.fixture(scope="module")
def rewards(make_episode: Callable[..., Episode]) -> dict[str, float | Exception]:
    async def judge_all() -> list[Any]:
        judge = MathAnswerAsJudge(TaskJudgeConfig())
        return await asyncio.gather(*(reward(judge, case) for case in ZOO))

    async def reward(judge: MathAnswerAsJudge, case: dict[str, Any]) -> float | Exception:
        output = case["answer"] if case["kind"] == "text" else f"<answer>{case['answer']}</answer>"
        episode = make_episode(output, case["reference"])
        task = replace(episode.task, query=case.get("question", episode.task.query))
        try:
            return (await judge.judge(task, episode)).reward
        except JudgeError as error:
            return error

    return dict(zip((case["id"] for case in ZOO), asyncio.run(judge_all()), strict=True))


@pytest.mark.fault("Judges", "an answer only looks right: 72 tenths, 1=1 for x=5, a box in the thinking", "reward 0")
@pytest.mark.fault("Judges", "an answer is taken back or one of two: 5? No: 6; \\boxed{5} or \\boxed{6}", "reward 0")
@pytest.mark.fault(
    "Judges", "a number and a numeral of any language: 5 Millionen, 5億; a ratio, a date", "not the number"
)
@pytest.mark.fault("Judges", "a right answer is written in an unusual way: 9*pi, CRLF, `A: 18`", "reward 1")
@pytest.mark.fault(
    "Judges", "an answer repeats the question: an integral, a binomial", "0; `must_be_evaluated: false` allows it"
)
def test_an_answer_of_the_zoo_gets_the_reward_that_common_sense_gives_it(
    rewards: dict[str, Any],
) -> None:
    wrong = {case["id"]: case for case in ZOO if rewards[case["id"]] != float(case["equal"])}
    told = [f"{name}: {case['reference']!r} and {case['answer']!r}" for name, case in wrong.items()]
    assert wrong.keys() == NOT_SEEN_AS_EQUAL.keys(), "\n".join(told)


def test_the_zoo_has_both_labels_of_every_kind() -> None:
    kinds = {case["kind"] for case in ZOO}
    assert len(ZOO) >= 260 and len({case["id"] for case in ZOO}) == len(ZOO)
    assert {(case["kind"], case["equal"]) for case in ZOO} == {
        (kind, equal) for kind in kinds for equal in (True, False)
    }
