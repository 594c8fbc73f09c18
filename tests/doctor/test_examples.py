"""Runs that learn from examples: what they evaluate with is tried, and examples begin as the agent's calls do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from tests.doctor.sound_config import AGENT, RunDoctor, lines, problems, the_problem

ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
WITH_SYSTEM = AGENT.replace('[{"role": "user"', '[{"role": "system", "content": "Be brief."}, {"role": "user"')
WITH_TOOL = AGENT.replace("messages=messages", f"messages=messages, tools=[{ADD!r}]")
SYSTEM = {"role": "system", "content": "Be brief."}
ASKED, SAID = {"role": "user", "content": "1?"}, {"role": "assistant", "content": "The answer is 1."}


def settings(method: str = "sft", **more: Any) -> dict[str, Any]:
    trainer = {"examples": "examples.jsonl", "tasks_per_step": 2, "total_steps": 2}
    return {"algorithm": {"method": method}, "trainer": {**trainer, **more}}


def examples(method: str = "sft", system: bool = False, **more: Any) -> list[Mapping[str, Any]]:
    asked = [SYSTEM, ASKED] if system else [ASKED]
    row: dict[str, Any] = {
        "sft": {"messages": [*asked, SAID]},
        "dpo": {"messages": asked, "chosen": SAID, "rejected": {**SAID, "content": "2"}},
        "kto": {"messages": asked, "answer": SAID, "good": True},
    }[method]
    return [{**row, **more}] * 4


@pytest.mark.parametrize("method", ["sft", "dpo", "kto"])
def test_a_sound_one_is_well_and_what_it_evaluates_with_is_tried(run_doctor: RunDoctor, method: str) -> None:
    findings = run_doctor(settings(method), examples_jsonl=lines(examples(method)))
    assert problems(findings) == []
    said = {finding.check: finding for finding in findings}
    assert {said[name].level for name in ("tasks", "workflow", "judge", "dry run", "context", "examples")} == {"ok"}
    assert said["tasks"].what == "6 held-out tasks, which evaluations play"
    assert said["examples"].what == "4 examples in " + said["examples"].what.partition(" in ")[2]
    assert said["training"].what.startswith("2 steps of 2 examples, learning rate")


BROKEN = {
    "a workflow that fails": ("dry run", {}, AGENT.replace("task.query", "task.metadata['prompt']"), "KeyError"),
    "a judge that there is not": ("judge", {"task_judge": {"judge_protocol": "Jugde"}}, AGENT, "Jugde"),
    "a workflow that does not load": ("workflow", {}, "import nothing_of_that_name", "nothing_of_that_name"),
}


@pytest.mark.parametrize("method", ["sft", "dpo", "kto"])
@pytest.mark.parametrize("case", BROKEN)
def test_what_would_fail_in_its_evaluations_is_found(run_doctor: RunDoctor, method: str, case: str) -> None:
    check, changes, agent, words = BROKEN[case]
    findings = run_doctor({**settings(method), **changes}, agent_py=agent, examples_jsonl=lines(examples(method)))
    found = the_problem(findings)
    assert (found.check, found.level) == (check, "fail") and words in found.what


def test_a_greedy_agent_may_be_evaluated(run_doctor: RunDoctor) -> None:
    agent = AGENT.replace("messages=messages", "messages=messages, temperature=0")
    assert problems(run_doctor(settings(), agent_py=agent, examples_jsonl=lines(examples()))) == []


OTHER = {**ADD, "function": {**ADD["function"], "description": "Adds."}}
DIFFER = {
    "no system message": (WITH_SYSTEM, {}, "in their system message: none in the example, 'Be brief.' in the call"),
    "one that the agent lacks": (AGENT, {"system": True}, "message: 'Be brief.' in the example, none in the call"),
    "no tools": (WITH_TOOL, {}, "in their tools: none in the example, add in the call"),
    "tools that the agent lacks": (AGENT, {"tools": [ADD]}, "in their tools: add in the example, none in the call"),
    "another definition": (WITH_TOOL, {"tools": [OTHER]}, """'{"description": "Adds.", "name": "add\""""),
}


@pytest.mark.parametrize("method", ["sft", "dpo", "kto"])
@pytest.mark.parametrize("case", DIFFER)
def test_examples_that_begin_otherwise_than_the_agent_are_a_warning_with_both_shown(
    run_doctor: RunDoctor, method: str, case: str
) -> None:
    agent, made, words = DIFFER[case]
    rows = examples(method, **made)
    found = the_problem(run_doctor(settings(method), agent_py=agent, examples_jsonl=lines(rows)))
    assert (found.check, found.level, found.where) == ("examples", "warn", "examples.jsonl:1")
    assert found.what.startswith("4 of 4 examples differ from the agent's first call in their ") and words in found.what


def test_examples_that_begin_as_the_agent_are_well(run_doctor: RunDoctor) -> None:
    strict = {**ADD, "function": {"strict": True, **ADD["function"]}}
    both = WITH_SYSTEM.replace("messages=messages", f"messages=messages, tools=[{ADD!r}]")
    rows = examples(system=True, tools=[strict])
    assert problems(run_doctor(settings(), agent_py=both, examples_jsonl=lines(rows))) == []


def test_a_system_message_with_the_question_in_it_is_not_compared(run_doctor: RunDoctor) -> None:
    asked = AGENT.replace('[{"role": "user"', '[{"role": "system", "content": f"Solve {task.query}"}, {"role": "user"')
    assert problems(run_doctor(settings(), agent_py=asked, examples_jsonl=lines(examples()))) == []


def test_lines_that_cannot_be_read_are_told_with_their_cause(run_doctor: RunDoctor) -> None:
    long = {"messages": [{"role": "user", "content": "x " * 5000}, SAID]}
    found = the_problem(run_doctor(settings(), examples_jsonl=lines([*examples(), long])))
    assert (found.check, found.level) == ("examples", "warn") and "left out are 1 that do not fit" in found.what
    found, *_ = problems(run_doctor(settings(), examples_jsonl=lines([*examples(), {"messages": []}])))
    assert (found.check, found.level, found.where) == ("examples", "fail", "examples.jsonl:5")
    found, *_ = problems(run_doctor(settings(), examples_jsonl=lines([long])))
    assert (found.check, found.level) == (
        "examples",
        "fail",
    ) and "no examples; left out are 1 that do not fit" in found.what
    found = the_problem(run_doctor(settings(tasks_per_step=8), examples_jsonl=lines(examples())))
    assert found.what == "a step takes 8 examples, and there are 4"
    held_out = settings(held_out_examples="held.jsonl")
    found = the_problem(run_doctor(held_out, examples_jsonl=lines(examples()), held_jsonl=json.dumps({"a": 1})))
    assert (found.check, found.level, found.where) == ("examples", "fail", "held.jsonl:1")
