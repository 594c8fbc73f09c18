"""The names of the article "AgentScope Agentic RL", of which no AgentScope has ever had a module.

Each name here translates its arguments and hands them to what ASTune has: a key that means nothing here raises
`ConfigError` with the nearest one, and a name that needs what is not built yet says what there is in its place.

    from astune.rl import MathAgentTrainer

    trainer = MathAgentTrainer(algorithm="ppo", model_config={"base_model": "Qwen/Qwen3-0.6B"},
                               reward_function={"correctness": 3.0}, agent=solve, tasks="train.jsonl")
    run = trainer.train()
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from astune.api.evaluate import evaluate
from astune.api.hot_updater import HotUpdater as HotUpdater
from astune.api.judge import judge
from astune.api.run import Run
from astune.api.tune import tune
from astune.cli import main
from astune.errors import ConfigError, nearest
from astune.monitor.disk import write_whole
from astune.online import DataCollector as DataCollector
from astune.online import OnlineClient, collect_message_ids
from astune.online.agent.preferences import HumanPreferenceCollector as HumanPreferenceCollector
from astune.support.concurrency import outside_loop, run_and_leave
from astune.task_judge.tool_use.calls import tool_calls
from astune.types import Episode, Task, Verdict

if TYPE_CHECKING:
    from astune.online.release.ab_test import ABTest
    from astune.online.release.manager import VersionManager

__all__ = [
    "ABTestFramework",
    "DPOTrainer",
    "DataCollector",
    "GameTrainer",
    "HotUpdater",
    "HumanPreferenceCollector",
    "LLMJudge",
    "MathAgentTrainer",
    "ModelManager",
    "MultiAgentGame",
    "OnlineTrainer",
    "RLRuntime",
    "RewardFunction",
    "ToolUseEvaluator",
    "ToolUseTrainer",
    "TrinityRFT",
]

ALGORITHMS: Mapping[str, Mapping[str, Any]] = {
    "ppo": {"method": "rl", "preset": "ppo"},
    "grpo": {"method": "rl", "preset": "grpo"},
    "dpo": {"method": "dpo"},
    "rft": {"method": "rft"},
}
MODEL = {"base_model": "astune.model.path", "lora_rank": "astune.model.lora.rank"}
TRAINING = {
    "learning_rate": "astune.trainer.learning_rate",
    "batch_size": "astune.trainer.tasks_per_step",
    "epochs": "astune.trainer.total_epochs",
}
TOOL_USE = {
    name: f"astune.task_judge.tool_use.{name}"
    for name in (
        *("correctness", "steps_penalty", "format_bonus"),
        *("correct_tool", "correct_args", "tool_success", "invalid_tool"),
    )
}
RUNTIME = {"train_interval": "astune.online.commit.every_episodes", "checkpoint_dir": "astune.online.folder"}
SHOWN = {"tool_accuracy": "judge/correct_tool", "arg_accuracy": "judge/correct_args", "recall": "judge/recall"}


def _translate(argument: str, given: Mapping[str, Any] | None, known: Mapping[str, str]) -> dict[str, Any]:
    """Our keys in the place of the article's. Raises `ConfigError` for one that means nothing here."""
    for name in given or {}:
        if name not in known:
            raise ConfigError(
                f"{argument}: {name!r} means nothing here.{nearest(name, known)} It takes {', '.join(known)}; any "
                "other key of the configuration goes beside it, as trainer={...}"
            )
    return {known[name]: value for name, value in (given or {}).items()}


def _choose(argument: str, value: str, known: Collection[str]) -> str:
    if value not in known:
        raise ConfigError(f"{argument}: got {value!r}; expected {', '.join(known)}.{nearest(value, known)}")
    return value


class TrinityRFT:
    """The keys of a training, for `OnlineTrainer` and for `astune.tune(..., **framework.keys)`."""

    def __init__(
        self,
        algorithm: str = "ppo",
        model_config: Mapping[str, Any] | None = None,
        training_config: Mapping[str, Any] | None = None,
        **keys: Any,
    ) -> None:
        chosen = ALGORITHMS[_choose("algorithm", algorithm, ALGORITHMS)]
        self.keys: dict[str, Any] = {f"astune.algorithm.{name}": value for name, value in chosen.items()}
        self.keys |= _translate("model_config", model_config, MODEL)
        self.keys |= _translate("training_config", training_config, TRAINING)
        if "astune.trainer.total_epochs" in self.keys:
            self.keys["astune.trainer.total_steps"] = None
        self.keys |= keys


class OnlineTrainer:
    """An agent in production whose model is served by `astune online`, at `endpoint`.

    A trajectory is a conversation with the ids of the service's answers (`run_and_collect`); adding it sends what it
    was worth, and a step asks the service for a version, which it then answers with by itself.
    """

    def __init__(
        self, agent: Any, endpoint: str, framework: TrinityRFT | None = None, token: str | None = None
    ) -> None:
        if framework is not None:
            raise ConfigError(
                "framework: the service trains, not this process; give it to RLRuntime, which starts the service"
            )
        self._agent, self._endpoint, self._token = agent, endpoint, token
        self.buffer: list[Mapping[str, Any]] = []
        """The trajectories since the last step."""

    async def run_and_collect(self, user_input: str, **said: Any) -> dict[str, Any]:
        """Ask the agent. `said` are `rewards` and `user_feedback`, as `DataCollector.collect` takes them."""
        with collect_message_ids(self._agent) as ids:
            trajectory = await DataCollector().collect(self._agent, user_input, **said)
        return trajectory | {"msg_ids": list(ids)}

    def add_trajectory(self, trajectory: Mapping[str, Any]) -> None:
        """Send what an answer was worth: `rewards`, or `feedback` as a rating or a thumb."""
        if not trajectory.get("msg_ids"):
            raise ConfigError("trajectory: it has no msg_ids; take it from run_and_collect of this trainer")
        said = dict(trajectory.get("feedback") or {})
        said |= {"rewards": trajectory["rewards"]} if trajectory.get("rewards") else {}
        self._call("feedback", msg_ids=trajectory["msg_ids"], **said)
        self.buffer.append(trajectory)

    def train_step(self) -> str:
        """Ask the service to make a version of what was rated so far."""
        self.buffer.clear()
        return self._call("commit")

    def should_update(self) -> bool:
        """False: the service answers with a new version by itself, and the agent stays as it is."""
        return False

    def _call(self, name: Literal["feedback", "commit"], **fields: Any) -> str:
        async def call() -> str:
            async with OnlineClient(self._endpoint, token=self._token) as client:
                return await (client.feedback(**fields) if name == "feedback" else client.commit(**fields))

        with outside_loop():
            return run_and_leave(call())


class RLRuntime:
    """The service and its trainer: `astune online` with what the arguments say."""

    def __init__(self, trainer_config: Mapping[str, Any], framework: TrinityRFT | None = None, **keys: Any) -> None:
        given = dict(trainer_config)
        algorithm = given.pop("algorithm", None)
        if given.get("update_interval", 1) != 1:
            raise ConfigError("trainer_config: 'update_interval': each version is served as soon as it is made")
        given.pop("update_interval", None)
        self.keys = {} if framework is None else dict(framework.keys)
        self.keys |= {} if algorithm is None else TrinityRFT(algorithm).keys
        self.keys |= _translate("trainer_config", given, RUNTIME) | keys

    @property
    def command(self) -> list[str]:
        """The arguments of `astune` that start it."""
        return ["online", *(f"{key}={json.dumps(value)}" for key, value in self.keys.items())]

    def start(self) -> int:
        """Serve and train until it is stopped. An agent comes in by the address of its model."""
        return main(self.command)


class _Trainer:
    """A training whose judge weighs what the agent did: `astune.tune` with `ToolUseJudge`."""

    rewards: Collection[str] = TOOL_USE

    def __init__(
        self,
        algorithm: str = "ppo",
        model_config: Mapping[str, Any] | None = None,
        reward_function: Mapping[str, float] | None = None,
        training_config: Mapping[str, Any] | None = None,
        *,
        agent: object = None,
        tasks: object = None,
        validation_tasks: object = None,
        **keys: Any,
    ) -> None:
        for name, value in (("agent", agent), ("tasks", tasks)):
            if value is None:
                raise ConfigError(f"{name}: not given; the episodes are played here, as in astune.tune")
        if algorithm == "dpo":
            raise ConfigError(
                "algorithm: 'dpo' learns from pairs of answers: DPOTrainer. Expected ppo, grpo or rft here"
            )
        weights = {name: TOOL_USE[name] for name in self.rewards}
        keys |= dict.fromkeys((TOOL_USE[name] for name in TOOL_USE if name not in self.rewards), 0.0)
        keys |= _translate("reward_function", reward_function, weights)
        self._given: dict[str, Any] = {"tasks": tasks, "validation_tasks": validation_tasks, "judge": "ToolUseJudge"}
        self._agent = agent
        self.keys = TrinityRFT(algorithm, model_config, training_config, **keys).keys

    def train(self) -> Run:
        """Play and learn, as `astune.tune` does."""
        return tune(self._agent, **self._given, **self.keys)

    def add_trajectory(self, trajectory: object) -> None:
        raise ConfigError("add_trajectory: train() plays the episodes itself, on `tasks`; leave it out")


class MathAgentTrainer(_Trainer):
    """Rewards right answers, few steps and the format."""

    rewards = ("correctness", "steps_penalty", "format_bonus")


class ToolUseTrainer(_Trainer):
    """Rewards the right tools with the right arguments."""

    rewards = ("correct_tool", "correct_args", "tool_success", "invalid_tool")


class ToolUseEvaluator:
    """How often an agent calls the tools that its tasks expect, in percent."""

    def __init__(self, model: object = "none", **keys: Any) -> None:
        self._model, self._keys = model, keys

    def evaluate(self, agent: object, test_cases: object) -> dict[str, float]:
        """`tool_accuracy`, `arg_accuracy` and `recall`, by `astune.evaluate`; without those that no task expects."""
        found = evaluate(agent, test_cases, "ToolUseJudge", models=[self._model], **self._keys)
        figures = next(iter(found.models[0].all.values()))
        return {name: figures[figure].mean * 100 for name, figure in SHOWN.items() if figure in figures}


class RewardFunction(ABC):
    """A judge, for `astune.tune(..., judge=TaskReward())`: `compute` makes a number of what the agent did."""

    @abstractmethod
    def compute(self, trajectory: dict[str, Any]) -> float:
        """The reward of a trajectory: `conversation_id`, `task` (the row), `messages`, `tool_calls`, `answer`."""

    async def judge(self, task: Task, episode: Episode) -> Verdict:
        """The verdict of `compute`."""
        last = episode.turns[-1] if episode.turns else None
        calls = [
            {"tool": call.name, "args": call.arguments, "failed": call.failed} for call in tool_calls(episode.turns)
        ]
        trajectory = {
            "conversation_id": episode.episode_id,
            "task": dict(task.metadata),
            "messages": [] if last is None else [*last.messages, last.response],
            "tool_calls": calls,
            "answer": None if episode.output is None else episode.output.answer,
        }
        return Verdict(float(self.compute(trajectory)), judged_by=type(self).__name__)


class LLMJudge:
    """`LlmAsJudge` with these criteria, each scored from 0 to 5; `keys` go beside `astune.tune(judge="LlmAsJudge")`."""

    def __init__(
        self,
        model: str,
        criteria: Mapping[str, str],
        base_url: str = "https://api.openai.com/v1",
        api_key_env: str | None = "OPENAI_API_KEY",
        **keys: Any,
    ) -> None:
        api = {"base_url": base_url, "model": model, "api_key_env": api_key_env}
        self.keys = {"astune.task_judge.llm.models": [api], "astune.task_judge.llm.criteria": dict(criteria)} | keys
        self._criteria = tuple(criteria)

    def evaluate(self, user_input: str, agent_response: str) -> dict[str, float]:
        """The score of each criterion, and `total`, all from 0 to 5."""
        verdict = judge("LlmAsJudge", {"query": user_input}, agent_response, **self.keys)
        return {name: verdict.metrics[name] for name in self._criteria} | {"total": verdict.reward * 5}


class DPOTrainer:
    """`astune.tune` with the method `dpo`, on the pairs that were added, which are kept in `path`."""

    def __init__(
        self,
        model_config: Mapping[str, Any] | None = None,
        training_config: Mapping[str, Any] | None = None,
        path: str = "preferences.jsonl",
        **keys: Any,
    ) -> None:
        self.keys = TrinityRFT("dpo", model_config, training_config, **keys).keys
        self._path = Path(path)
        self._pairs: list[Mapping[str, Any]] = []

    def add_preference(self, preference: Mapping[str, Any]) -> None:
        """Add a pair of `HumanPreferenceCollector`."""
        self._pairs.append(preference)

    def train(self) -> Run:
        """Write the pairs, and learn from them."""
        if not self._pairs:
            raise ConfigError("DPOTrainer: nothing to learn from: add_preference() first")
        write_whole(self._path, "".join(json.dumps(pair, ensure_ascii=False) + "\n" for pair in self._pairs))
        return tune(**{"astune.trainer.examples": str(self._path)}, **self.keys)


def ABTestFramework(
    model_a: str,
    model_b: str,
    traffic: Mapping[str, float] | None = None,
    metrics: Collection[str] = ("user_satisfaction",),
    conf: str = "service.yaml",
    **keys: Any,
) -> ABTest:
    """A test of two versions of a running service on its users, with `run` and `switch_traffic`."""
    from astune.online.release.ab_test import ABTest

    return ABTest(model_a, model_b, traffic or {"a": 0.5, "b": 0.5}, metrics, conf, keys)


def ModelManager(checkpoint_dir: str | None = None, conf: str | None = None, **keys: Any) -> VersionManager:
    """The versions of the service in this folder, or of this configuration: `create_version`, `rollback`,
    `create_ab_test`."""
    from astune.online.release.manager import VersionManager

    folder = {} if checkpoint_dir is None else {RUNTIME["checkpoint_dir"]: checkpoint_dir}
    return VersionManager(conf, folder | keys)


class _NotThere:
    """A name of the article that needs what is not built yet."""

    today = ""

    def __init__(self, *given: object, **named: object) -> None:
        raise ConfigError(f"astune.rl.{type(self).__name__} is not there yet. Today: {self.today}")


class MultiAgentGame(_NotThere):
    today = "a workflow that plays the whole game, with tuner.model(NAME) for each agent"


class GameTrainer(_NotThere):
    today = (
        "astune.tune with a workflow that plays the game and calls tuner.reward(NAME, value) for each agent; "
        "tuner.model(NAME, trainable=False) keeps one out"
    )
