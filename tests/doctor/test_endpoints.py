"""Chat APIs, over real HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from astune.testing import ScriptedChatServer
from astune.testing.chat_server import chat_completion
from tests.doctor.chat_api import api
from tests.doctor.sound_config import RunDoctor, problems, the_problem

HELLO = chat_completion({"content": "Hello"})
EXACT = chat_completion(
    {"content": "Hello"},
    choice={"token_ids": [1, 2], "logprobs": {"content": [{"token": "a", "logprob": -1.0, "top_logprobs": []}] * 2}},
    prompt_token_ids=[3],
)


def critic(base_url: str, **more: Any) -> dict[str, Any]:
    model = {"base_url": base_url, "model": "small", **more}
    return {"rollout": {"auxiliary_models": {"critic": model}}}


def test_an_api_that_answers_is_left_alone(run_doctor: RunDoctor) -> None:
    with api(HELLO) as (url, bodies):
        findings = run_doctor(critic(url))
    assert problems(findings) == []
    assert bodies[0]["model"] == "small" and bodies[0]["max_tokens"] == 16
    assert any("small at" in finding.what for finding in findings)


def test_an_api_that_judges_is_asked_too(run_doctor: RunDoctor) -> None:
    with api(404, models=["judge-7b"]) as (url, _):
        judge = {"judge_protocol": "LlmAsJudge", "llm": {"models": [{"base_url": url, "model": "judge-8b"}]}}
        findings = problems(run_doctor({"task_judge": judge}))
    (found,) = [finding for finding in findings if finding.check != "judge"]  # the judge fails with its model
    assert (found.check, found.level) == ("endpoints", "fail")
    assert "astune.task_judge.llm.models.0" in found.where and "Did you mean 'judge-7b'?" in found.fix


def test_an_api_that_makes_tasks_is_asked_too_and_what_it_makes_counts_among_the_tasks(run_doctor: RunDoctor) -> None:
    with api(404, models=["maker"]) as (url, _):
        augment = {"target": 8, "models": [{"base_url": url, "model": "makers"}]}
        found = the_problem(run_doctor({"task_reader": {"augment": augment}, "trainer": {"tasks_per_step": 16}}))
    assert "astune.task_reader.augment.models.0" in found.where and "Did you mean 'maker'?" in found.fix


def test_an_api_that_is_not_there(run_doctor: RunDoctor) -> None:
    with api(HELLO) as (url, _):
        pass
    found = the_problem(run_doctor(critic(url)))
    assert (found.check, found.level) == ("endpoints", "fail")
    assert "cannot reach" in found.what and "start the server" in found.fix
    assert found.where == "x.yaml:14: astune.rollout.auxiliary_models.critic"


def test_a_model_that_the_api_does_not_have(run_doctor: RunDoctor) -> None:
    with api(404, models=["smell", "large"]) as (url, _):
        found = the_problem(run_doctor(critic(url)))
    assert found.level == "fail" and "has no model 'small'" in found.what
    assert found.fix == "it has smell, large. Did you mean 'smell'?"


def test_an_api_that_answers_for_a_model_it_does_not_list(run_doctor: RunDoctor) -> None:
    with api(HELLO, models=["large"]) as (url, _):
        found = the_problem(run_doctor(critic(url)))
    assert found.level == "warn" and "does not list 'small'" in found.what and "large" in found.fix


def test_an_api_key_that_is_not_set(run_doctor: RunDoctor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CRITIC_KEY", raising=False)
    with api(HELLO) as (url, bodies):
        found = the_problem(run_doctor(critic(url, api_key_env="CRITIC_KEY"), offline=True))
    assert found.level == "fail" and "CRITIC_KEY" in found.what and found.fix == "export CRITIC_KEY=..."
    assert bodies == []


def test_a_refused_key_is_said_in_the_apis_words(run_doctor: RunDoctor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRITIC_KEY", "wrong")
    with api(401) as (url, _):
        found = the_problem(run_doctor(critic(url, api_key_env="CRITIC_KEY")))
    assert "refused the API key in CRITIC_KEY" in found.what and "key" in found.fix


def test_a_model_that_is_to_be_trained_and_gives_no_token_ids(run_doctor: RunDoctor) -> None:
    with api(HELLO) as (url, bodies):
        found = the_problem(run_doctor(critic(url, trainable=True)))
    assert found.level == "fail" and "gives no token ids and no log-probabilities" in found.what
    assert "vLLM" in found.fix and bodies[0]["return_token_ids"] is True and bodies[0]["logprobs"] is True


def test_a_model_that_is_to_be_trained_and_gives_all_of_them(run_doctor: RunDoctor) -> None:
    with api(EXACT) as (url, _):
        assert problems(run_doctor(critic(url, trainable=True))) == []


def test_the_endpoints_of_the_debugger_are_asked_too(run_doctor: RunDoctor) -> None:
    with api(500) as (url, _):
        found = the_problem(run_doctor({"debug": {"endpoints": [{"base_url": url, "model": "small"}]}}))
    assert found.check == "endpoints" and "astune.debug.endpoints.0" in found.where


def completion(entries: list[Any] | None) -> dict[str, Any]:
    choice = {"index": 0, "text": "", "logprobs": None, "finish_reason": "length", "prompt_logprobs": entries}
    return {"id": "1", "object": "text_completion", "created": 0, "model": "small", "choices": [choice]}


@pytest.mark.parametrize(
    ("text", "said"),
    [(None, ""), ("Ж", "has other tokens than the model that is trained"), ("none", "gives no log-probabilities")],
)
def test_a_teacher_is_asked_whether_it_weighs_our_tokens(run_doctor: RunDoctor, text: str | None, said: str) -> None:
    def answer(body: dict[str, Any]) -> dict[str, Any]:
        if text == "none":
            return completion(None)
        entries = [{str(token): {"logprob": -1.0, "rank": 1, "decoded_token": text}} for token in body["prompt"]]
        return completion([None, *entries[1:]])

    with ScriptedChatServer(answer) as server:
        teacher = {"base_url": server.base_url, "model": "small"}
        findings = run_doctor({"algorithm": {"method": "distill", "teacher": teacher}})
    if said:
        found = the_problem(findings)
        assert said in found.what and found.where.endswith("astune.algorithm.teacher") and "vLLM" in found.fix
    else:
        assert problems(findings) == [] and any("weighs tokens" in finding.what for finding in findings)


def test_offline_asks_nobody(run_doctor: RunDoctor) -> None:
    with api(500) as (url, bodies):
        findings = run_doctor(critic(url), offline=True)
    assert problems(findings) == [] and bodies == []
    assert any(finding.level == "skip" and "--offline" in finding.what for finding in findings)


def test_offline_skips_a_judge_that_may_need_the_network(run_doctor: RunDoctor) -> None:
    judge = "import httpx\ndef judge(task, episode):\n    return 1 / 0\n"
    findings = run_doctor({"task_judge": {"judge_protocol": "judge.py:judge"}}, offline=True, judge_py=judge)
    assert problems(findings) == []
    (skipped,) = [finding for finding in findings if finding.check == "judge"]
    assert skipped.level == "skip" and "httpx" in skipped.what


def test_offline_skips_a_data_set_on_the_hub(run_doctor: RunDoctor) -> None:
    pytest.importorskip("datasets")
    reader = {"type": "huggingface", "huggingface": {"dataset_path": "openai/gsm8k", "dataset_name": "main"}}
    findings = run_doctor({"task_reader": reader}, offline=True)
    assert problems(findings) == []
    assert any(f.check == "tasks" and f.level == "skip" and "openai/gsm8k" in f.what for f in findings)
