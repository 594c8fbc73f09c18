"""Checks of answers, one by one."""

from __future__ import annotations

from pathlib import Path

import pytest

from astune.config.judges import TaskJudgeConfig
from astune.data.checks import _computes, judge_same, say_same
from astune.data.expand import seeds_of
from astune.data.made import Made
from astune.data.near import Copies
from astune.errors import ConfigError
from astune.types import Episode, Task
from tests.data.planted import PlantedTasks
from tests.data.test_expand import AGREE, expand, rows_of, serve
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
async def test_answers_are_the_same_by_value_or_word_for_word(reference: str, answer: str, same: bool) -> None:
    assert await say_same(Made("?", reference, {}), answer) is same


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
    assert copies.find_same("What is 3 - 4?") is None and copies.find_same("what is 3+4") is not None
    assert len(seeds_of([Task("1", "3 + 4?", answer="7"), Task("2", "3 - 4?", answer="-1")], None)) == 2  # type: ignore[arg-type]


def test_what_the_policy_always_or_never_solves_is_dropped(tmp_path: Path) -> None:
    world, policy = PlantedTasks(seed=8), PlantedTasks(seed=8, noise=0.5)
    policy.truth = world.truth
    with serve(policy) as server:
        api = f"{{base_url: '{server.base_url}', model: policy}}"
        expand(world, tmp_path, *AGREE, f"astune.task_reader.augment.policy=[{api}]", target=8)
    kept, dropped = rows_of(tmp_path / "made.jsonl"), rows_of(tmp_path / "made.dropped.jsonl")
    assert len(kept) == 8 and all(0 < row["lineage"]["checks"]["policy"]["solved"] < 4 for row in kept)
    assert {row["reason"] for row in dropped} <= {"too hard", "too easy"} and dropped
