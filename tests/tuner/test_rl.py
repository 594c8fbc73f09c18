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
        (lambda: rl.HotUpdater(agent=None, update_config={"strategy": "canary"}), "the strategy 'rolling'"),
        (lambda: rl.HotUpdater(agent=None, update_config={"canary": 0.1}), "Did you mean 'canary_ratio'?"),
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


def service_of(folder: Path, every_commits: int, count: int) -> dict[str, object]:
    """The keys of a service in which so many versions were made, as the shipped model left by a short run."""
    from contextlib import closing

    from astune.backbone.local.engine import load_engine
    from astune.online.store import aliases, succession, versions
    from astune.online.store.versions import ModelVersion
    from astune.online.training.checkpoint import new_folder, put_in_place, seal
    from astune.store.database import open_database
    from astune.store.tables import commits
    from tests.store.rows import add

    keys = {"astune.online.folder": str(folder), "astune.model.device": "cpu"}
    learner = load_engine(load_config(None, ["astune.model.device=cpu"], for_run=False).config.astune).learner
    with closing(open_database(f"sqlite:///{folder}/online.db")) as database, database.writing() as connection:
        versions.register(connection, versions.AS_CONFIGURED)
        for number in range(1, count + 1):
            with new_folder(folder / "versions") as made:
                learner.save(made)
                sha256 = seal(made)
                name = put_in_place(made, number, sha256)
            commit = add(connection, commits, by="hand", state="made")
            versions.add(connection, ModelVersion(number, number - 1, commit, name, sha256))
            succession.promote_made(connection, every_commits, 1.0)
        assert aliases.champion(connection).number == count // every_commits * every_commits
    return keys


def test_a_model_manager_names_versions_and_goes_back(tmp_path):
    keys = service_of(tmp_path, 1, 1)
    manager = rl.ModelManager(checkpoint_dir=str(tmp_path))
    assert (manager.create_version("v1.1"), manager.create_version("v1.2")) == ("v1", "v1")
    assert manager.rollback("v0") == "v0" and manager.create_version("v1.0") == "v0"
    assert manager.rollback("v1.1") == "v1" and manager.rollback("v1.0") == "v0"
    manager.create_ab_test(version_a="v1.0", version_b="v1.1", traffic_ratio={"a": 0.7, "b": 0.3})
    assert keys


def test_a_hot_updater_tests_what_waits_and_lets_it_answer_or_not(tmp_path):
    keys = service_of(tmp_path, 5, 2) | SHORT
    rules = {"strategy": "rolling", "canary_ratio": 0.5, "check_after_updates": 2}
    updater = rl.HotUpdater(solve, rules, "MathAnswerAsJudge", **keys)
    assert updater.has_new_model()
    assert 0.0 <= updater.test_canary(TASKS)["success_rate"] <= 1.0
    updater.rollback()
    assert not updater.has_new_model()
    with pytest.raises(ConfigError, match="no version waits"):
        updater.rollout_update()
    rl.ModelManager(str(tmp_path)).rollback("v2")
    with pytest.raises(ConfigError, match="no version waits"):
        updater.test_canary(TASKS)
