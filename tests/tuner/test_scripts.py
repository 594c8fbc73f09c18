"""Scripts for AgentScope 1.x's tuner, with one import changed, run: with agents of 1.x where that is installed, else of
2.x. The shipped model and scripted APIs stand where such scripts have a big model and DashScope."""

import gc
import json
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("agentscope")

from astune.testing import ScriptedChatServer
from astune.tuner import (
    AlgorithmConfig,
    DatasetConfig,
    JudgeOutput,
    PromptTuneConfig,
    TunerModelConfig,
    WorkflowOutput,
    tune,
    tune_prompt,
)
from tests.tuner.agents import ask_agent, chat_model


@pytest.fixture
def data(tmp_path, monkeypatch):
    """Files of tasks in the form of GSM8K, in the working directory."""
    monkeypatch.chdir(tmp_path)
    for name, numbers in (("train.jsonl", range(9)), ("test.jsonl", range(20, 32))):
        rows = [{"question": f"What is {n} + 1?", "answer": f"{n} and 1 make #### {n + 1}"} for n in numbers]
        Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    yield DatasetConfig(path="train.jsonl"), DatasetConfig(path="test.jsonl")
    gc.collect()  # clients of models that the workflow makes and leaves


async def run_react_agent(task: dict, model, auxiliary_models: dict | None = None) -> WorkflowOutput:
    assert not auxiliary_models
    return WorkflowOutput(response=await ask_agent(model, "Solve the problem.", task["question"]))


async def length_judge(task: dict, response) -> JudgeOutput:
    """No sense, but what attempts of the shipped model differ in."""
    text = response.get_text_content() or ""
    return JudgeOutput(reward=sum(map(ord, text)) % 7 / 7, metrics={"length": float(len(text))})


async def gsm8k_judge(task: dict, response) -> JudgeOutput:
    truth = task["answer"].split("####")[1].strip()
    right = float(truth in response.get_text_content().split())
    return JudgeOutput(reward=right, metrics={"accuracy": right})


def test_tune_trains_the_model(data):
    train, test = data
    run = tune(
        workflow_func=run_react_agent,
        judge_func=length_judge,
        train_dataset=train.model_copy(update={"total_steps": 1}),
        eval_dataset=test,
        model=TunerModelConfig(model_path="tiny", max_model_len=512, max_tokens=24),
        algorithm=AlgorithmConfig(algorithm_type="multi_step_grpo", group_size=4, learning_rate=1e-4, batch_size=2),
        project_name="compat",
        experiment_name="lengths",
        monitor_type="tensorboard",
    )
    assert run.outcome == "completed" and run.folder.name == "lengths"
    assert run.held_out["greedy"]["last"]["step"] == 1
    assert any("judge/length" in name for name in run.metrics[-1])


def test_tune_prompt_finds_what_the_task_needs(data, monkeypatch):
    train, test = data

    def answer(body):
        if body["model"] == "writer":
            return json.dumps({"lessons": "It says no number.", "text": "Solve the problem. Write the number out."})
        asked = body["messages"][-1]["content"]
        asked = asked if isinstance(asked, str) else asked[0]["text"]
        number = int(asked.split("What is ")[1].split()[0]) + 1
        knows = 20 < number < 26 or "Write the number out" in str(body["messages"][0])
        return f"It is {number} ." if knows else "It is easy ."

    async def workflow(task: dict, system_prompt: str) -> WorkflowOutput:
        response = await ask_agent(chat_model(server.base_url, "player"), system_prompt, task["question"])
        return WorkflowOutput(response=response)

    with ScriptedChatServer(answer) as server:
        monkeypatch.setenv("OPENAI_API_BASE", server.base_url)
        prompt, metrics = tune_prompt(
            workflow=workflow,
            init_system_prompt="Solve the problem.",
            judge_func=gsm8k_judge,
            train_dataset=train,
            eval_dataset=test,
            config=PromptTuneConfig(lm_model_name="openai/writer", eval_display_progress=False),
        )
    assert prompt == "Solve the problem. Write the number out."
    assert metrics == {"valset_improvement": pytest.approx(140.0)}  # 12 of 12 right, and 5 before
