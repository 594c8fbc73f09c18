"""The doctor's look at the judge."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from astune.task_judge.llm.fence import read_fences
from astune.testing import ScriptedChatServer
from tests.doctor.sound_config import RunDoctor, lines, problems, rows, the_problem


def scored(scorer: str, count: int = 12, **fields: str) -> str:
    return lines([{**row, "scorer": scorer, **fields} for row in rows(0, count)])


def judges(findings: list[Any]) -> list[str]:
    return [finding.what for finding in findings if finding.check == "judge"]


def test_the_doctor_tries_a_list_of_judges_as_one(run_doctor: RunDoctor) -> None:
    both = [{"judge": "MathAnswerAsJudge"}, {"judge": "judge.py:judge", "weight": 0.5}]
    findings = run_doctor(
        {"task_judge": {"judge_protocol": both}}, judge_py="def judge(task, episode):\n    return True\n"
    )
    assert problems(findings) == []
    assert judges(findings)[0].startswith("MathAnswerAsJudge + ") and "right on 3" in judges(findings)[0]


def test_the_doctor_tries_the_judges_that_tasks_name(run_doctor: RunDoctor) -> None:
    config = {"task_judge": {"scorers": {"exam": "judge.py:judge"}}}
    findings = run_doctor(
        config,
        judge_py="def judge(task, episode):\n    return 0\n",
        train_jsonl=scored("math", answer_schema="boxed"),
        heldout_jsonl=lines([{**row, "scorer": "exam"} for row in rows(100, 6)]),
    )
    refused = the_problem(findings)
    assert (
        refused.check == "judge" and "3 of 3 reference answers do not count as right; heldout.jsonl:1" in refused.what
    )
    assert any("written as '\\\\boxed{1}'" in what for what in judges(findings))


def test_the_doctor_names_a_scorer_that_there_is_not(run_doctor: RunDoctor) -> None:
    found = the_problem(run_doctor(train_jsonl=scored("maths")))
    assert found.check == "judge" and "unknown scorer 'maths'" in found.what and "'math'" in found.what


def test_the_doctor_names_what_no_judge_reads_as_a_run_does(run_doctor: RunDoctor) -> None:
    found = the_problem(run_doctor({"task_judge": {"tool_use": {"correctness": 1}}}))
    assert (found.check, found.level) == ("judge", "fail") and "take the key out" in found.fix
    assert "astune.task_judge.tool_use.correctness" in found.where
    scorer = {"task_judge": {"scorers": {"own": "judge.py:judge"}}}
    right = "def judge(task, episode):\n    return task.answer in episode.output.answer\n"
    unnamed = the_problem(run_doctor(scorer, judge_py=right))
    assert "no judge reads astune.task_judge.scorers: no task has a field 'scorer' that names one" in unnamed.what


def test_the_doctor_has_nothing_to_try_on_judges_of_what_an_agent_does(run_doctor: RunDoctor) -> None:
    findings = run_doctor({"task_judge": {"judge_protocol": "EnvServiceJudge", "answer_format": "auto"}})
    assert problems(findings) == []
    assert "EnvServiceJudge judges what the agent does" in judges(findings)[0]


def llm(server: ScriptedChatServer) -> dict[str, Any]:
    models = [{"base_url": server.base_url, "model": "judge"}]
    return {"task_judge": {"judge_protocol": "LlmAsJudge", "llm": {"models": models, "cache": None}}}


def reply(score: Callable[[str, str], int]) -> Callable[[dict[str, Any]], str]:
    """A model that gives the answer to a task a score, as a function of it and the reference says."""

    def answer(body: dict[str, Any]) -> str:
        fences = dict(read_fences(str(body["messages"][-1]["content"])))
        if "answer" not in fences:  # the doctor asks whether the model is there
            return "Hello"
        score_of = score(fences["answer"], fences["reference"])
        return json.dumps({"criteria": [{"id": "correct", "reason": "so", "score": score_of}]})

    return answer


def test_the_doctor_asks_models_about_few_answers(run_doctor: RunDoctor) -> None:
    with ScriptedChatServer(reply(lambda answer, reference: int(answer == reference)), models=["judge"]) as server:
        findings = run_doctor(llm(server))
        asked = [dict(read_fences(str(body["messages"][-1]["content"]))).get("answer") for body in server.requests]
    assert problems(findings) == []
    assert "LlmAsJudge: right on 3 reference answers" in judges(findings)[0]
    assert len([answer for answer in asked if answer is not None]) <= 15


def test_the_doctor_takes_a_models_error_for_a_warning(run_doctor: RunDoctor) -> None:
    with ScriptedChatServer(reply(lambda answer, reference: 0), models=["judge"]) as server:
        found = next(finding for finding in problems(run_doctor(llm(server))) if finding.check == "judge")
    assert found.level == "warn" and "3 of 3 reference answers do not count as right" in found.what
    assert "check-tasks" in found.fix


@pytest.mark.parametrize("key", [None, "NO_SUCH_KEY"])
def test_the_doctor_asks_no_model_offline(run_doctor: RunDoctor, key: str | None) -> None:
    with ScriptedChatServer([]) as server:
        config = llm(server)
        config["task_judge"]["llm"]["models"][0]["api_key_env"] = key
        findings = run_doctor(config, offline=True)
        assert server.requests == []
    assert judges(findings) == ["LlmAsJudge asks models, and this is --offline"]
