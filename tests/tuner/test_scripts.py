"""Scripts for AgentScope 1.x's tuner, with one import changed, run: with agents of 1.x where that is installed, else of
2.x. The shipped model and scripted APIs stand where such scripts have a big model and DashScope."""

import asyncio
import gc
import json
import threading
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("agentscope")

from astune.errors import TrainingError
from astune.testing import ScriptedChatServer
from astune.training.model_calls import read_calls
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
from astune.tuner.model_selection import avg_token_consumption_judge, select_model
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


async def run_agent(task: dict, model) -> WorkflowOutput:
    return await run_react_agent(task, model)


async def composite_judge(task: dict, response) -> JudgeOutput:
    spent = response["metrics"]["usage"]["total_tokens"]
    judged = await gsm8k_judge(task, response["response"])
    return JudgeOutput(reward=judged.reward, metrics={**judged.metrics, "tokens": spent})


async def select_one(server, judge, train, stream=False):
    """The place of the best of three models, two of one name, that are called by the script before and after."""
    models = [chat_model(server.base_url, name, stream) for name in ("brief", "brief", "right")]
    before = [dict(vars(model)) for model in models]
    best, metrics = await select_model(
        workflow_func=run_agent, judge_func=judge, train_dataset=train, candidate_models=models
    )
    assert [vars(model) for model in models] == before
    assert await ask_agent(best, "Solve the problem.", "What is 1 + 1?")
    for model in models:
        await model.client.close()
    return models.index(best), metrics


def say_right(body):
    """`right` knows the answer."""
    asked = body["messages"][-1]["content"]
    asked = asked if isinstance(asked, str) else asked[0]["text"]
    number = int(asked.split("What is ")[1].split()[0]) + 1
    return f"It is, as far as anyone can tell, {number} ." if body["model"] == "right" else "No ."


def read_played():
    """The names of the folders that were played into, and the calls that ended."""
    folders = sorted(path.parent for path in Path("runs").rglob("calls.jsonl"))
    calls = [call for folder in folders for row in read_calls(folder).values() for call in row if not call.whole]
    return [folder.name for folder in folders], calls


async def test_select_model_picks_a_live_object(data):
    train = data[0].model_copy(update={"total_steps": 4})
    with ScriptedChatServer(say_right, usage=True) as server:
        place, metrics = await select_one(server, composite_judge, train)
        assert place == 2 and metrics["accuracy_avg"] == 1.0 and metrics["tokens_avg"] > 0
        names, calls = read_played()
        assert names == ["brief", "brief-2", "right"] and len([call for call in calls if call.tokens]) == 3 * 4
        place, metrics = await select_one(server, avg_token_consumption_judge, train)
        assert place == 0 and metrics["token_consumed_avg"] > 0


async def test_models_that_stream_are_counted_too(data):
    train = data[0].model_copy(update={"total_steps": 2})
    with ScriptedChatServer(say_right, usage=True) as server:
        place, metrics = await select_one(server, composite_judge, train, stream=True)
        assert place == 2 and metrics["accuracy_avg"] == 1.0 and metrics["tokens_avg"] > 0
        assert all(body["stream"] for body in server.requests)
    assert len([call for call in read_played()[1] if call.tokens]) == 3 * 2


async def test_a_selection_that_is_cancelled_asks_nobody_any_more(data):
    """Ctrl-C cancels what a script awaits."""
    with ScriptedChatServer(say_right, usage=True) as server:
        models = [chat_model(server.base_url, name) for name in ("brief", "right")]
        selection = asyncio.create_task(
            select_model(
                workflow_func=run_agent,
                judge_func=composite_judge,
                train_dataset=data[0],
                candidate_models=models,
                max_threads=1,
            )
        )
        while not server.requests:
            await asyncio.sleep(0.01)
        selection.cancel()
        with pytest.raises(asyncio.CancelledError):
            await selection
        await asyncio.to_thread(end_thread, "select_model")
        assert len(server.requests) < 9
        for model in models:
            await model.client.close()


def end_thread(name):
    """Wait for the thread of that name."""
    for thread in threading.enumerate():
        if thread.name == name:
            thread.join()


async def test_select_model_says_that_nothing_could_be_judged(data):
    models = [chat_model("http://127.0.0.1:9/v1", name) for name in ("a", "b")]
    for model in models:
        model.client = model.client.with_options(max_retries=0)
        model.max_retries = 0
    with pytest.raises(TrainingError, match=r"not reached: a: .*picked: none"):
        await select_model(
            workflow_func=run_agent,
            judge_func=composite_judge,
            train_dataset=data[0].model_copy(update={"total_steps": 1}),
            candidate_models=models,
        )
