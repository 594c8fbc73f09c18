"""From a configuration to the parts of a run that every backbone puts together the same way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from astune.algorithm import Weighting
from astune.clients.chat import ChatClient
from astune.config.schema import AstuneConfig, ModelConfig
from astune.context_tracker.chat_format import ChatFormat
from astune.errors import PolicyError
from astune.plugins import load_plugin
from astune.rollout.setup import RolloutSetup
from astune.task_judge import Scorers, make_judge
from astune.task_judge.registry import import_registered
from astune.task_reader import make_reader
from astune.types import Generation, Policy, Sampling, Task
from astune.workflow.workflow_base import as_workflow


@dataclass(frozen=True)
class NoPolicy:
    """Lends a run its context length where something else answers in the policy's place."""

    context_length: int

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        raise PolicyError("a source answers in the policy's place in this run")


def load_chat_format(model: ModelConfig, directory: Path) -> ChatFormat:
    """The tokenizer and template in `directory`, read as `astune.model` says."""
    return ChatFormat.load(
        directory, tool_call_format=model.tool_call_format, template_kwargs=model.chat_template_kwargs
    )


def rollout_setup(config: AstuneConfig, policy: Policy, chat_format: ChatFormat) -> RolloutSetup:
    """Workflow, judge and auxiliary models of the configuration around a policy."""
    protocol = config.rollout.agentscope_learn_protocol
    assert protocol is not None, "astune.config.rules refuses a configuration without a workflow"
    workflow = load_plugin(protocol, kind="workflow")
    return RolloutSetup(
        policy=policy,
        chat_format=chat_format,
        workflow_factory=as_workflow(workflow),
        judge=make_judge(config.task_judge),
        max_turns=config.rollout.max_turns,
        episode_timeout=config.rollout.episode_timeout,
        scorers=Scorers(config.task_judge),
        judge_timeout=config.task_judge.seconds,
        max_episode_tokens=config.rollout.max_episode_tokens,
        clients={
            name: ChatClient(name, model, key=f"astune.rollout.auxiliary_models.{name}")
            for name, model in config.rollout.auxiliary_models.items()
        },
        allow_inexact=config.rollout.allow_inexact,
    )


def read_tasks(config: AstuneConfig, split: Literal["training", "validation"]) -> list[Task]:
    tasks = make_reader(config.task_reader).read(split)
    scorers = Scorers(config.task_judge)
    import_registered(scorers.specs(tasks), config.rollout.agentscope_learn_protocol)
    scorers.check(tasks)
    return tasks


def sampling_for(config: AstuneConfig, decoding: Literal["sampled", "greedy"]) -> Sampling:
    """How answers are drawn unless the agent asks otherwise: as in training, or greedily."""
    rollout = config.rollout
    if decoding == "greedy":
        return Sampling(max_tokens=rollout.max_tokens, temperature=0.0)
    return Sampling(rollout.max_tokens, rollout.temperature, rollout.top_p, rollout.top_k)


def weighting_for(config: AstuneConfig) -> Weighting:
    """How trained tokens count in the loss."""
    algorithm = config.algorithm
    return Weighting(algorithm.loss_aggregation, algorithm.credit, config.rollout.max_tokens)
