"""The names of the article: what they hand on, and what they refuse."""

import gc
import json
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("agentscope")

import astune
from astune import rl
from astune.config.load import load_config
from astune.errors import ConfigError
from astune.testing import ScriptedChatServer, ScriptedOnlineService
from astune.types import Task, WorkflowOutput
from tests.rows import each_row
from tests.tuner.agents import chat_model, make_agent

TINY = {"base_model": "tiny"}
SHORT = {"astune.rollout.max_tokens": 16, "astune.rollout.num_repeat": 4, "astune.evaluation.before": False}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    gc.collect()  # clients of models that agents leave


async def solve(task: Task, tuner) -> WorkflowOutput:
    reply = await tuner.openai_client().chat.completions.create(
        model="policy", messages=[{"role": "user", "content": task.query}]
    )
    return WorkflowOutput(answer=reply.choices[0].message.content)


TASKS = [{"query": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(2, 6)]


@each_row(
    ("make", "expected"),
    [
        (lambda: rl.TrinityRFT("ppoo"), "Did you mean 'ppo'?"),
        (lambda: rl.TrinityRFT(model_config={"base_modl": "x"}), "Did you mean 'base_model'?"),
        (
            lambda: rl.TrinityRFT(training_config={"gradient_accumulation_steps": 4}),
            "training_config: 'gradient_accumulation_steps' means nothing here",
        ),
        (
            lambda: rl.MathAgentTrainer(reward_function={"correct_tool": 1.0}, agent=solve, tasks=TASKS),
            "reward_function: 'correct_tool' means nothing here",
        ),
        (lambda: rl.MathAgentTrainer(), "agent: not given"),
        (lambda: rl.ToolUseTrainer("dpo", agent=solve, tasks=TASKS), "DPOTrainer"),
        (lambda: rl.RLRuntime({"algorithm": "ppo", "update_interval": 100}), "'update_interval'"),
        (lambda: rl.DPOTrainer().train(), "add_preference() first"),
        (lambda: rl.HumanPreferenceCollector(lambda text: "c").collect("?", "1", "2"), "preference: got 'c'"),
        (lambda: rl.HotUpdater(agent=None, update_config={"strategy": "canary"}), "rl.HotUpdater is not there yet"),
        (lambda: rl.ModelManager(checkpoint_dir="./checkpoints"), "rl.ModelManager is not there yet"),
        (lambda: rl.ABTestFramework("v1", "v2", {"a": 0.8, "b": 0.3}), "expected shares of 'a' and 'b'"),
        (lambda: rl.ABTestFramework("v1", "v2", metrics=["acuracy"]), "Did you mean 'accuracy'?"),
        (lambda: rl.MultiAgentGame(roles={}), "rl.MultiAgentGame is not there yet"),
        (lambda: rl.GameTrainer(agents=[]), "rl.GameTrainer is not there yet"),
    ],
)
def test_what_means_nothing_here_is_refused(make, expected):
    with pytest.raises(ConfigError) as error:
        make()
    assert expected in str(error.value)


def test_a_runtime_is_the_command_of_the_service():
    framework = rl.TrinityRFT("ppo", TINY | {"lora_rank": 8}, {"learning_rate": 1e-5, "batch_size": 16})
    runtime = rl.RLRuntime({"train_interval": 10, "checkpoint_dir": "./checkpoints"}, framework)
    command, *overrides = runtime.command
    loaded = load_config(None, overrides, for_run=False).config.astune
    assert (command, loaded.online.commit.every_episodes, loaded.model.lora.rank) == ("online", 10, 8)
    assert (loaded.algorithm.preset, loaded.trainer.tasks_per_step) == ("ppo", 16)


def test_a_trainer_weighs_what_the_article_names():
    trainer = rl.MathAgentTrainer(
        algorithm="grpo",
        model_config=TINY,
        reward_function={"correctness": 3.0, "steps_penalty": -0.1, "format_bonus": 0.5},
        training_config={"learning_rate": 1e-4, "batch_size": 4, "epochs": 1},
        agent=solve,
        tasks=TASKS,
        **SHORT,
    )
    run = trainer.train()
    assert run.outcome in ("completed", "learned_nothing") and run.steps == 1
    tools = load_config(run.folder / "config.yaml", for_run=False).config.astune.task_judge.tool_use
    assert (tools.correctness, tools.correct_tool) == (3.0, 0.0)


def test_a_tool_use_evaluator_tells_percent():
    cases = [task | {"expected_tools": []} for task in TASKS]
    found = rl.ToolUseEvaluator("tiny", **SHORT).evaluate(solve, cases)
    assert found["tool_accuracy"] == 100.0 and "recall" not in found


def test_preferences_become_pairs_that_dpo_learns_from():
    trainer = rl.DPOTrainer(TINY, {"batch_size": 2, "epochs": 1, "learning_rate": 1e-4})
    shown = []

    def ask(text):
        shown.append(text)
        return " B"

    for n in range(2):
        trainer.add_preference(rl.HumanPreferenceCollector(ask).collect(f"{n}?", "It is no number.", f"It is {n}."))
    assert shown[0].startswith("0?\n\na: It is no number.\n\nb: It is 0.")
    run = trainer.train()
    assert run.outcome == "completed"
    assert json.loads(Path("preferences.jsonl").read_text().splitlines()[1])["chosen"]["content"] == "It is 1."


def test_a_reward_function_is_a_judge():
    class Brief(rl.RewardFunction):
        def compute(self, trajectory):
            assert trajectory["messages"][0]["content"] == trajectory["task"]["query"]
            return 1.0 / (len(trajectory["tool_calls"]) + 1)

    found = astune.evaluate(solve, TASKS, Brief(), models=["tiny"], **SHORT)
    assert found.models[0].all["greedy"]["reward"].mean == 1.0


def test_an_llm_judge_scores_criteria_from_0_to_5():
    scores = [{"id": "accuracy", "reason": "nearly", "score": 4}]
    with ScriptedChatServer(lambda body: json.dumps({"criteria": scores})) as server:
        judge = rl.LLMJudge("scripted", {"accuracy": "It is right."}, server.base_url, None)
        judge.keys |= {"astune.task_judge.llm.cache": None}
        assert judge.evaluate("6 * 7?", "It is 42.") == {"accuracy": 4.0, "total": 4.0}


async def test_an_online_trainer_rates_what_the_service_answered():
    with ScriptedOnlineService(["It is 42."]) as service:
        model = chat_model(f"{service.url}/v1", "policy")
        trainer = rl.OnlineTrainer(make_agent(model, "You solve."), service.url)
        trainer.add_trajectory(await trainer.run_and_collect("6 * 7?", user_feedback={"rating": 4}))
        assert len(trainer.buffer) == 1 and not trainer.should_update()
        trainer.train_step()
        await model.client.close()
        assert service.feedback == [{"msg_ids": ["msg-0"], "rating": 4}] and len(service.commits) == 1
    assert trainer.buffer == []
    with pytest.raises(ConfigError, match="no msg_ids"):
        trainer.add_trajectory({"messages": []})
