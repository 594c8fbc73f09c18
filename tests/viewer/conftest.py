"""A run folder as training leaves it, played by a scripted agent: real tracker, tokenizer and files."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from astune.algorithm import to_samples
from astune.algorithm.advantage import grpo
from astune.config.schema import Config, RolloutConfig
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.context_tracker.scripted_policy import ScriptedPolicy
from astune.monitor import EpisodeLog, MetricsLog, RunDir
from astune.rollout.group import run_groups
from astune.rollout.metrics import evaluation_metrics, rollout_metrics
from astune.rollout.setup import RolloutSetup
from astune.support.resources import tiny_model_dir
from astune.types import Episode, Group, Sampling, Task, Verdict, WorkflowOutput
from astune.workflow.tuner import Tuner
from astune.workflow.workflow_base import as_workflow

TOOL = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Calculates a product.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}


async def workflow(task: Task, tuner: Tuner) -> WorkflowOutput:
    client = tuner.openai_client("solver")
    messages = [
        {"role": "system", "content": "You solve word problems. Use the calculator."},
        {"role": "user", "content": task.query},
    ]
    for _ in range(4):
        reply = await client.chat.completions.create(model="m", messages=messages, tools=[TOOL])
        message = reply.choices[0].message
        if not message.tool_calls:
            return WorkflowOutput(answer=message.content)
        messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls:
            numbers = json.loads(call.function.arguments)
            product = str(numbers["a"] * numbers["b"])
            messages.append({"role": "tool", "tool_call_id": call.id, "content": product})
    raise RuntimeError("the agent calls the calculator again and again")


class EqualAnswer:
    async def judge(self, task: Task, episode: Episode) -> Verdict:
        assert episode.output is not None
        right = str(episode.output.answer).endswith(f" {task.answer}.")
        return Verdict(float(right), right, f"expected {task.answer}", judged_by="EqualAnswer")


def make_tasks(count: int, prefix: str) -> list[Task]:
    tasks = []
    for i in range(count):
        a, b = 3 + i % 7, 4 + i % 5
        kind = ("boxes", "prices")[i % 2]
        query = f"{a} boxes hold {b} pens each. How many pens?" if kind == "boxes" else f"{a} pens at {b} each. Price?"
        tasks.append(Task(f"{prefix}-{i}", query, answer=str(a * b), metadata={"kind": kind, "a": a, "b": b}))
    return tasks


class Script:
    """The scripted agent: `skill` is the probability that it uses the calculator well."""

    def __init__(self) -> None:
        self.skill = 0.0
        self.random = random.Random(0)

    def __call__(self, prompt: str) -> str:
        if "<tool_response>" in prompt:
            return f"The answer is {prompt.rpartition('<tool_response>')[2].split()[0]}."
        if self.random.random() > self.skill:
            return f"The answer is {self.random.randint(10, 60)}."
        question = prompt.rpartition("<|im_start|>user")[2]
        a, b = [int(word) for word in question.replace(".", " ").split() if word.isdigit()][:2]
        return f'<tool_call>\n{{"name": "calculator", "arguments": {{"a": {a}, "b": {b}}}}}\n</tool_call>'


def play_run(folder: Path, steps: int = 12, tasks_per_step: int = 4, held_out: int = 30, repeat: int = 4) -> RunDir:
    """A run of `steps` steps whose agent gets better, with held-out evaluation before and after."""
    config = Config.model_validate(
        {
            "astune": {
                "project_name": "tutorial",
                "experiment_name": "math_agent",
                "runs_dir": str(folder),
                "rollout": {"num_repeat": repeat, "agentscope_learn_protocol": "agent.py:workflow"},
                "trainer": {"total_steps": steps, "learning_rate": 3e-4},
            }
        }
    )
    run_dir = RunDir.open(config, resume=False)
    chat_format = ChatFormat.load(tiny_model_dir())
    script = Script()
    policy = ScriptedPolicy(script, chat_format, context_length=2048)
    setup = RolloutSetup(
        policy, chat_format, as_workflow(workflow), EqualAnswer(), RolloutConfig(max_turns=8), judge_timeout=10.0
    )
    metrics, episodes = MetricsLog(run_dir), EpisodeLog(run_dir)

    def play(tasks: list[Task], n: int, label: str) -> list[Group]:
        sampling = Sampling(max_tokens=128)
        return asyncio.run(run_groups(tasks, n, setup, seed=1, sampling=sampling, max_concurrent=8, label=label))

    def evaluate(step: int) -> None:
        for decoding in ("sampled", "greedy"):
            groups = play(make_tasks(held_out, "held-out"), 1, f"eval/{decoding}/{step}")
            played = [group.episodes[0] for group in groups]
            for episode in played:
                episodes.write(episode, step=step, phase=f"eval/{decoding}")
            figures = evaluation_metrics(groups, 2.0)
            metrics.log(step, {f"eval/{decoding}/{name}": value for name, value in figures.items()})

    script.skill = 0.4
    evaluate(0)
    for step in range(1, steps + 1):
        script.skill = 0.4 + 0.56 * step / steps
        groups = play(make_tasks(tasks_per_step, f"train-{step}"), repeat, f"train/{step}")
        played = [episode for group in groups for episode in group.episodes]
        for episode in played:
            episodes.write(episode, step=step, phase="train")
        metrics.log(step, step_metrics(step, groups, script.random))
    evaluate(steps)
    metrics.close()
    episodes.close()
    return run_dir


def step_metrics(step: int, groups: list[Group], noise: random.Random) -> dict[str, float]:
    """What the local backbone logs, less the figures of an update, which are made up."""
    _, receipt = to_samples(groups, grpo)
    return {
        **rollout_metrics(groups),
        **receipt.metrics(0),
        "loss": noise.gauss(0, 0.01),
        "grad_norm": 0.6 + noise.random() / (1 + step / 4),
        "entropy": 0.9 / (1 + step / 6) + 0.03 * noise.random(),
        "kl/sampler": 0.001 * noise.random(),
        "time/rollout": 3.0,
        "time/train": 1.5,
        "time/step": 4.6,
    }


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., RunDir]:
    return lambda **sizes: play_run(tmp_path, **sizes)
