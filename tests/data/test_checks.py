"""Checks of answers, one by one."""

from __future__ import annotations

import pytest

from astune.clients.json_reply import read_reply
from astune.config.judges import TaskJudgeConfig
from astune.data.checks import _computes, judge_same, say_same
from astune.data.expand import seeds_of
from astune.data.made import Made
from astune.data.near import Copies
from astune.data.prompts import Proposals, Solution
from astune.errors import ConfigError
from astune.types import Episode, Task
from tests.rows import each_row


@each_row(
    ("reference", "answer", "same"),
    [
        ("42", "$42.00", True),
        ("0.5", "1/2", True),
        ("Ada Lovelace", "ada  lovelace.", True),
        ("-5", "5", False),
        ("3/4", "3 4", False),
        ("Ada Lovelace", "Lovelace", False),
        ("x > 3", "x > -3", False),
        ("42", "", False),
    ],
)
def test_answers_are_the_same_by_value_or_word_for_word(reference: str, answer: str, same: bool) -> None:
    assert say_same(reference, answer) is same


def test_a_number_for_a_text_is_taken_as_models_write_it() -> None:
    reply = '{"tasks": [{"question": "3 + 4?", "answer": 7}]}'
    assert read_reply(reply, Proposals).tasks[0].answer == "7"
    assert read_reply('{"answer": 7.5}', Solution).answer == "7.5"


def anything(task: Task, episode: Episode) -> float:
    return 1.0


async def test_the_judge_of_the_configuration_compares_and_one_that_takes_anything_is_refused() -> None:
    made = Made("Half of 3?", "3/2", {})
    same = judge_same(TaskJudgeConfig(judge_protocol="MathAnswerAsJudge"))
    assert await same(made, "1.5") and not await same(made, "2/3")
    lenient = judge_same(TaskJudgeConfig(judge_protocol="tests.data.test_checks:anything"))
    with pytest.raises(ConfigError, match="takes any answer for right"):
        await lenient(made, "1.5")
    with pytest.raises(ConfigError, match="judges what an agent does"):
        await judge_same(TaskJudgeConfig(judge_protocol="ToolUseJudge"))(made, "1.5")


@each_row(
    ("program", "computes"),
    [
        ("print(12)", False),
        ("x = '12'\nprint(x)", False),
        ("print(3 * 4)", True),
        ("print(sum(n for n in (3, 4)))", True),
        ("print(", False),
    ],
)
def test_a_program_that_prints_what_it_was_told_computes_nothing(program: str, computes: bool) -> None:
    assert _computes(program) is computes


def test_formulas_that_differ_in_a_sign_are_no_copies() -> None:
    copies = Copies()
    copies.add(Task("1", "What is 3 + 4?", answer="7"))
    assert copies.find_same(Task("2", "What is 3 - 4?")) is None
    assert copies.find_same(Task("2", "what is 3+4")) is not None
    assert len(seeds_of([Task("1", "3 + 4?", answer="7"), Task("2", "3 - 4?", answer="-1")], None)) == 2  # type: ignore[arg-type]
