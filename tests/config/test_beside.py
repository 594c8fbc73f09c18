"""A key that is read only beside another and is set where nothing reads it is an error by name."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from astune.config.judges import TaskJudgeConfig
from astune.config.load import load_config
from astune.config.rules.beside import READ_BY_JUDGE, unread_judge_keys, unread_keys, unread_run_keys
from astune.config.schema import AstuneConfig
from astune.config.tasks import FieldsConfig
from astune.errors import ConfigError, TaskError
from astune.task_judge import BUILTIN_JUDGES
from astune.task_reader.rows import RowMapping
from tests.rows import each_row

TASKS = {"jsonl": {"training": {"file_path": "a.jsonl"}}}
WORKFLOW = {"agentscope_learn_protocol": "a.py:W"}
HELD_OUT = {"jsonl": {"training": {"file_path": "a.jsonl"}, "validation": {"file_path": "b.jsonl"}}}
SERVICE = {"type": "env_service", "env_service": {"serve": "countdown"}}
SFT = {"algorithm": {"method": "sft"}, "trainer": {"examples": "e.jsonl"}}


def load(folder: Path, values: dict[str, Any], *, for_run: bool = True) -> AstuneConfig:
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump({"astune": {"task_reader": TASKS, "rollout": WORKFLOW, **values}}))
    return load_config(path, for_run=for_run).config.astune


@pytest.mark.fault(
    "Input files and settings", "a setting that nothing reads in this combination", "an error that names it and why"
)
@each_row(
    ("values", "key"),
    [
        (
            {"task_reader": {**TASKS, "max_validation_tasks": 5}},
            "max_validation_tasks: there are no held-out",
        ),
        ({"task_reader": {**TASKS, "on_overlap": "warn"}}, "task_reader.on_overlap: there are no held-out tasks"),
        ({"task_reader": {**TASKS, "huggingface": {"validation_split": "test"}}}, "huggingface.validation_split: for"),
        ({"task_reader": {**TASKS, "reasoning_gym": {"seed": 3}}}, "reasoning_gym.seed: for astune.task_reader.type"),
        (
            {"task_reader": {**SERVICE, "jsonl": {"validation": {"file_path": "b.jsonl"}}}},
            "jsonl.validation: for astune.task_reader.type 'jsonl'",
        ),
        ({"task_reader": {**SERVICE, "fields": {"query": "q"}}}, "fields.query: tasks of an environment service"),
        ({"task_reader": {**TASKS, "env_service": {"validation_split": "test"}}}, "env_service.validation_split: for"),
        (
            {"task_reader": {"type": "env_service", "env_service": {"serve": "countdown", "token_variable": "T"}}},
            "env_service.token_variable: the service that serve starts",
        ),
        ({"task_judge": {"rubrics": {"pass_at": 0.7}}}, "task_judge.rubrics.pass_at: there is no rubric"),
        ({"online": {"feedback": {"judge_after_seconds": 5}}}, "judge_after_seconds: nothing is judged"),
        ({"allow_changes": True}, "astune.allow_changes: a run that does not go on"),
        ({"evaluation": {"attempts": 4}}, "evaluation.attempts: there are no held-out tasks"),
        ({"evaluation": {"decoding": ["greedy"]}}, "evaluation.decoding: there are no held-out tasks"),
        ({**SFT, "rollout": {}, "evaluation": {"every": 5}}, "evaluation.every: the method 'sft' evaluates nothing"),
        ({**SFT, "task_reader": {**TASKS, "max_validation_tasks": 5}}, "max_validation_tasks: there are no held-out"),
        ({"backbone": "debug", "debug": {"tasks": ["a"], "index": 3}}, "debug.index: astune.debug.tasks says"),
        (
            {"backbone": "debug", "debug": {"model": "replay:r.json", "tasks": ["a"]}},
            "debug.tasks: a recording has its tasks",
        ),
    ],
)
def test_what_nothing_reads_is_named(tmp_path: Path, values: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match="astune") as caught:
        load(tmp_path, values)
    assert key in str(caught.value)


@each_row(
    "values",
    [
        {"task_reader": {**HELD_OUT, "max_validation_tasks": 5, "on_overlap": "warn"}, "evaluation": {"attempts": 4}},
        {"task_reader": {**TASKS, "validation_fraction": 0.1, "max_validation_tasks": 5}},
        {
            "evaluation": {"attempts": 4, "sets": {"hard": {"file_path": "b.csv"}}},
            "task_reader": {**TASKS, "csv": {"separator": "tab"}},
        },
        {"task_reader": {**TASKS, "env_service": {"serve": "countdown", "params": {"a": 1}}}},
        {"task_reader": {"type": "mine.py:Reader", **TASKS, "fields": {"query": "q"}, "max_validation_tasks": 5}},
        {"task_reader": {**TASKS, "huggingface": {"dataset_path": "d", "validation_split": "test"}}},
        {"allow_changes": True, "resume": True},
        {"backbone": "debug", "debug": {"tasks": ["a"], "num_tasks": 3}},
        {
            **SFT,
            "rollout": {},
            "trainer": {**SFT["trainer"], "held_out_examples": "h.jsonl"},
            "evaluation": {"every": 5},
        },
    ],
)
def test_what_something_reads_is_no_error(tmp_path: Path, values: dict[str, Any]) -> None:
    astune = load(tmp_path, values)
    assert [*unread_keys(astune), *unread_run_keys(astune)] == []


@each_row(
    ("values", "judges", "keys"),
    [
        ({"llm": {"models": [{"base_url": "http://h", "model": "m"}]}}, {"MathAnswerAsJudge"}, ["llm.models"]),
        ({"llm": {"models": [{"base_url": "http://h", "model": "m"}]}}, {"MathAnswerAsJudge", "LlmAsJudge"}, []),
        ({"llm": {"mode": "pairwise", "pass_at": 0.4}}, {"MathAnswerAndLlmAsJudge"}, ["llm.mode"]),
        ({"llm": {"pass_at": 0.4, "votes": 2}}, {"RubricsAsJudge"}, ["llm.pass_at"]),
        ({"tool_use": {"correctness": 1}}, {"LlmAsJudge"}, ["tool_use.correctness"]),
        (
            {"rubrics": {"file": "r.yaml"}, "must_be_evaluated": False},
            {"LlmAsJudge"},
            ["must_be_evaluated", "rubrics.file"],
        ),
        ({"answer_format": "boxed"}, set(), ["answer_format"]),
        ({"answer_format": "boxed", "tool_use": {"correctness": 1}}, {"mine.py:judge"}, []),
        ({"scorers": {"own": "mine.py:judge"}}, {"MathAnswerAsJudge"}, ["scorers"]),
    ],
)
def test_what_no_judge_of_the_tasks_reads_is_named(values: dict[str, Any], judges: set[str], keys: list[str]) -> None:
    found = [key for key, _ in unread_judge_keys(TaskJudgeConfig.model_validate(values), judges, named=False)]
    assert sorted(found) == [f"astune.task_judge.{key}" for key in keys]


def test_every_judge_that_ships_says_what_it_reads() -> None:
    assert READ_BY_JUDGE.keys() == BUILTIN_JUDGES.keys()


def test_a_pattern_for_answers_needs_a_column_of_answers() -> None:
    mapping = RowMapping(FieldsConfig(answer_regex=r"#### (.+)"))
    with pytest.raises(TaskError, match=r"a:1: astune.task_reader.fields.answer_regex is set, and there is no column"):
        mapping.record({"query": "6 * 12?", "solution": "#### 72"}, "a:1")
    assert mapping.record({"query": "6 * 12?", "answer": None}, "a:2").task.answer is None
