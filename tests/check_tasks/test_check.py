"""Answers that every judge must know: the core of `astune check-tasks`."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astune.check_tasks.check import ALL, ALWAYS, GOLD, OTHER, REPEATED, check_judged, wrong_answers
from astune.check_tasks.judged_tasks import JudgedTasks, by_judge
from astune.check_tasks.near_misses import NEAR_MISSES, near_misses
from astune.check_tasks.try_answers import episode_of, try_answers
from astune.check_tasks.wordings import BY_FORMAT, EMPTY, UNKNOWN, all_at_once, as_answer, options
from astune.config.judges import TaskJudgeConfig
from astune.errors import JudgeError, TaskError
from astune.task_judge import register_judge
from astune.task_judge.judge_base import AT_ONCE
from astune.task_judge.math.final_answer import extract_answer, reference_answer
from astune.types import Episode, StopReason, Task, Verdict
from tests.rows import each_row

SUMS = [Task(f"t{n}", f"What is {n} plus {n}?", answer=str(2 * n)) for n in range(1, 6)]


OF_WHOLE = ("one more", "another last digit", "a digit more", "the other sign", "its negation")
SOMETIMES = {ALL, OTHER, "one more", "another first digit", "another last digit", "a digit less", "a digit more"}


class Says:
    """A judge that calls right what a function says is right. A function that raises cannot tell."""

    def __init__(self, right: Callable[[Task, str], Any]) -> None:
        self._right = right
        self.now = self.most = 0

    async def judge(self, task: Task, episode: Episode) -> Verdict:
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0)
        self.now -= 1
        assert episode.output is not None
        found = self._right(task, episode.output.answer)
        return Verdict(float(found), found if isinstance(found, bool) else None)


async def misjudged_by(right: Callable[[Task, str], Any], tasks: list[Task] = SUMS) -> list[set[str]]:
    judged = JudgedTasks(Says(right), TaskJudgeConfig(judge_protocol="j.py:judge"), tasks)
    return [set(one.misjudged) for one in (await check_judged(judged))[0]]


async def test_a_judge_that_compares_whole_answers_has_no_fault():
    assert await misjudged_by(lambda task, text: text == task.answer) == [set()] * 5


@pytest.mark.fault(
    "Judges",
    "a judge accepts any number, or compares only a part of the answer",
    "`astune check-tasks` tries near misses and other tasks' answers",
)
@each_row(
    ("right", "kinds"),
    [
        (lambda task, text: task.answer in text, {ALL, "the other sign", "its negation", "a digit more"}),
        (lambda task, text: text in task.answer, {EMPTY, "a digit less"}),
        (lambda task, text: True, {*ALWAYS[1:], OTHER, *OF_WHOLE}),
        (lambda task, text: text.isdigit(), {OTHER, *OF_WHOLE} - {"the other sign", "its negation"}),
        (lambda task, text: text[:1] == task.answer[0], {"a digit more", "a digit less", "another last digit"}),
        (lambda task, text: text[-2:].endswith(task.answer[-1]), {ALL, "the other sign", "its negation"}),
        (lambda task, text: abs(float(text)) == float(task.answer), {"the other sign"}),
        (lambda task, text: abs(float(text) - float(task.answer)) <= 1, {"one more"}),
        (lambda task, text: False, {GOLD}),
        (lambda task, text: "don't" in text or text == task.answer, {UNKNOWN}),
        (lambda task, text: text in (task.answer, task.query), {REPEATED}),
        (lambda task, text: 0.7 * (text == task.answer), {GOLD}),
        (lambda task, text: 0.7 * (text in (task.answer, "")), {GOLD, EMPTY}),
        (lambda task, text: 1.5 if text == task.answer else 0.9, set()),
    ],
    ids=["substring", "part of it", "all", "any number", "first digit", "last digit", "sign", "off by one", "none",
         "evasion", "echo", "by degrees", "as much", "close"],
)  # fmt: skip
async def test_each_kind_of_weakness_is_found(right, kinds):
    """For every task but where what the judge compares happens to differ."""
    found = await misjudged_by(right)
    assert set().union(*found) >= kinds
    assert all(misjudged <= kinds | SOMETIMES for misjudged in found)


async def test_a_judge_by_the_first_or_the_last_number_is_found_out_by_some_task():
    first = await misjudged_by(lambda task, text: text.split(",")[0].split(" or ")[0] == task.answer)
    last = await misjudged_by(lambda task, text: text.split(" or ")[-1] == task.answer)
    assert {ALL} in first and {ALL} in last


async def test_reference_answers_are_written_as_the_judge_wants_them():
    for pattern in ("The answer is {}.", "<answer>{}</answer>", "Answer: {}"):
        assert await misjudged_by(lambda task, text, p=pattern: text == p.format(task.answer)) == [set()] * 5


async def test_an_answer_that_cannot_be_judged_does_not_pass_and_a_reference_answer_must_be_judged():
    def refuses(task, text):
        if not text:
            raise JudgeError("an empty answer")
        return text == task.answer

    assert await misjudged_by(refuses) == [set()] * 5

    def breaks(task, text):
        raise ValueError("a bug")

    assert await misjudged_by(breaks) == [{GOLD}] * 5


async def test_judges_are_asked_about_many_answers_at_once_but_not_all():
    judge = Says(lambda task, text: True)
    tried = await try_answers(JudgedTasks(judge, TaskJudgeConfig(), SUMS), [(SUMS[n % 5], str(n)) for n in range(100)])
    assert [answer.text for answer in tried] == [str(n) for n in range(100)]
    assert judge.most == AT_ONCE


def test_a_judge_sees_a_whole_episode():
    episode = episode_of(SUMS[0], "2")
    (turn,), (timeline,) = episode.turns, episode.timelines
    assert turn.messages[0]["content"] == SUMS[0].query and turn.response["content"] == "2"
    assert (*turn.prompt_ids, *turn.output_ids) == tuple(timeline.token_ids)
    assert episode.output is not None and episode.output.answer == "2"
    ran_out = episode_of(SUMS[0], None)
    assert (ran_out.output, ran_out.stop_reason) == (None, StopReason.MAX_TURNS)


async def test_what_is_near_every_reference_of_the_zoo_is_wrong_to_the_math_judge():
    """What tells of both: a near miss that is none, and a judge that is too kind."""
    zoo = Path(__file__).parents[1] / "task_judge/math/zoo.jsonl"
    references = dict.fromkeys(json.loads(line)["reference"] for line in zoo.read_text("utf-8").splitlines())
    tasks = [Task(reference, "?", answer=reference) for reference in [*references][::3]]
    (judged,) = by_judge(tasks, TaskJudgeConfig(judge_protocol="MathAnswerAsJudge"))
    checked, _ = await check_judged(judged)
    assert [(one.task.answer, one.misjudged) for one in checked if one.misjudged] == []
    assert {kind for one in checked for kind in one.tried} >= {*NEAR_MISSES} - {"another option", "another unit"}


@each_row(
    ("answer", "kinds"),
    [
        ("7", {"one more": "8", "a digit more": "77", "another last digit": "2", "the other sign": "-7"}),
        ("0", {"one more": "1", "another last digit": "5"}),
        ("$1,250.00", {"one more": "$1251.00", "the other sign": "-$1250.00", "another unit": "1250.00 cent"}),
        ("5 km", {"another unit": "5 mm", "one more": "6 km"}),
        ("4/4", {"the numerator alone": "4", "another numerator": "5/4", "the other sign": "-4/4"}),
        (r"\frac{3}{4}", {"upside down": r"\frac{4}{3}", "another denominator": r"\frac{3}{5}"}),
        (r"\{1,2\}", {"another element": r"\{1, 3\}", "a part of it": r"\{1\}"}),
        ("(2, 2)", {}),
        ("(1, 2)", {"the other way round": "(2, 1)"}),
        ("[0,1)", {"other brackets": "(0,1)", "another element": "[0, 2)"}),
        ("9\\pi", {"one more": "9\\pi+1", "the other sign": "-9\\pi"}),
        ("x=5", {"one more": "x=6"}),
        ("x \\le 5", {}),
        ("\\pm 2", {}),
        ("B", {"another option": "C"}),
        ("no", {"the opposite": "yes"}),
        ("isosceles triangle", {"another last word": "isosceles qwerty"}),
    ],
)
def test_near_misses_differ_in_value(answer, kinds):
    found = near_misses(Task("t", "?", answer=answer))
    assert found.pop("its negation") == f"not {answer}"
    assert kinds.items() <= found.items() and bool(kinds) == bool(found)


@given(st.text(max_size=60) | st.from_regex(r"-?\$?[0-9,]{1,9}(\.[0-9]{1,3})?( (km|clips))?%?", fullmatch=True))
def test_any_reference_has_near_misses_that_are_other_texts(answer):
    for kind, text in near_misses(Task("t", "?", answer=answer)).items():
        assert kind in NEAR_MISSES and text != reference_answer(answer)


async def test_another_tasks_answer_is_one_of_another_value():
    tasks = [Task(answer, "?", answer=answer) for answer in ("50%", "0.5", "1/2", "7", "Paris", "the city of Paris")]
    (judged,) = by_judge(tasks, TaskJudgeConfig(judge_protocol="MathAnswerAsJudge"))
    assert [wrong.get(OTHER) for wrong in wrong_answers(judged)] == ["7", "7", "7", "50%", "50%", "50%"]


def test_a_wrong_answer_stands_where_the_reference_stood():
    task = Task("t", "?", answer="2 and 2 are 4\n#### 4")
    assert as_answer(task, "5", "{}", whole=True) == "2 and 2 are 4\n#### 5"
    assert as_answer(task, "5", "{}", whole=False) == "5"
    assert as_answer(task, "5", "#### {}", whole=True) == "#### 5"


RED = ["red", "blue", "green"]


@each_row(
    ("metadata", "query", "answer", "found"),
    [
        ({"options": RED}, "?", "blue", RED),
        ({"options": RED}, "?", "B", ["A", "B", "C"]),
        ({"choices": {"A": "red", "B": "blue"}}, "?", "(b)", ["A", "B"]),
        ({"choices": {"A": "red", "B": "blue"}}, "?", "red", ["red", "blue"]),
        ({"choices": {"label": ["1", "2"], "text": ["red", "blue"]}}, "?", "2", ["1", "2"]),
        ({"choices": {"label": ["1", "2"], "text": ["red", "blue"]}}, "?", "blue", ["red", "blue"]),
        ({"options": [{"label": "A", "text": "red"}, {"label": "B", "text": "blue"}]}, "?", "#### A", ["A", "B"]),
        ({"options": [3, 4.5]}, "?", "3", ["3", "4.5"]),
        ({"options": []}, "Pick (A) red (B) blue", "A", ["A", "B"]),
        ({}, "Pick:\nA) red\nB) blue\nC) green", "green", RED),
        ({}, "Pick A) red, B) blue", "blue", ["red", "blue"]),
        ({}, "Prove that (A) holds.", "yes", []),
        ({}, "See (B) and (C)", "B", []),
        ({"options": "none"}, "What is f(A)?", "1", []),
        ({"options": ["red"]}, "?", "red", []),
    ],
)
def test_options_stand_in_fields_or_in_the_question(metadata, query, answer, found):
    assert options(Task("t", query, answer=answer, metadata=metadata)) == found


def test_all_options_are_named_in_one_answer():
    task = Task("t", "Which?", answer="B", metadata={"options": RED})
    assert all_at_once(task, ["72"], "\\boxed{{{}}}", place=0) == "\\boxed{A, B or C}"
    alone = Task("t", "How many?", answer="2 and 2 are\n#### 4")
    assert all_at_once(alone, [], "{}", place=1) == "-987654321 or 4"
    assert all_at_once(alone, ["4.", "4", "7", "8", "9"], "{}", place=1) == "7, 4 or 8"


@given(st.text(), st.none() | st.text(), st.dictionaries(st.sampled_from(["options", "choices"]), st.recursive(
    st.none() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["A", "text", "label", "x"]), inner),
    max_leaves=6,
)))  # fmt: skip
def test_any_row_can_be_asked_for_its_options(query, answer, metadata):
    task = Task("t", query, answer=answer, metadata=metadata)
    assert len(options(task)) != 1
    assert all_at_once(task, ["1", "2"], "{}", place=3)


def test_there_are_words_for_every_answer_format():
    assert set(BY_FORMAT) == set(get_args(TaskJudgeConfig.model_fields["answer_format"].annotation))
    for answer_format, pattern in BY_FORMAT.items():
        final = extract_answer(pattern.format("42"), answer_format)
        assert final is not None and final.text == "42"


def test_tasks_are_grouped_by_the_judge_that_judges_them():
    tasks = [
        Task("1", "?", answer="1"),
        Task("2", "?", answer="2", metadata={"scorer": "math", "answer_schema": "answer"}),
        Task("3", "?", answer="3", metadata={"scorer": "env"}),
        Task("4", "?", answer="4", metadata={"scorer": "math", "answer_schema": "answer"}),
    ]
    config = TaskJudgeConfig(judge_protocol=[{"judge": "MathAnswerAsJudge"}, {"judge": "ToolUseJudge"}])
    first, second, third = by_judge(tasks, config)
    assert [judged.title for judged in (first, second, third)] == [
        "MathAnswerAsJudge + ToolUseJudge",
        "MathAnswerAsJudge",
        "EnvServiceJudge",
    ]
    assert [task.task_id for task in second.tasks] == ["2", "4"] and second.config.answer_format == "answer_tag"
    assert [judged.by_the_answer for judged in (first, second, third)] == [False, True, False]
    assert [judged.tasks for judged in by_judge(tasks, TaskJudgeConfig())] == [second.tasks, third.tasks]
    with pytest.raises(TaskError, match="unknown scorer 'maths'"):
        by_judge([Task("5", "?", metadata={"scorer": "maths"})], config)


def test_a_registered_judge_is_known_by_its_name() -> None:
    @register_judge("doctors_own")
    def judge(task: Task, episode: Episode) -> bool:
        return True

    (judged,) = by_judge(SUMS, TaskJudgeConfig(judge_protocol="doctors_own"))
    assert (judged.title, judged.asks_models, judged.network_packages) == ("doctors_own", False, set())
