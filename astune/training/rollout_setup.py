"""Make of a configuration what rollouts take: parts around any policy, sampling, weights, the environment service."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

from astune.algorithm import Weighting
from astune.clients.chat import ChatClient
from astune.clients.env_service import EnvServiceClient
from astune.clients.own_env_service import own_service
from astune.config.schema import AstuneConfig
from astune.config.tasks import EnvServiceConfig
from astune.context_tracker.agent_models import AgentModels
from astune.context_tracker.model_dir import load_formats
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.errors import ConfigError, PolicyError
from astune.plugins import load_plugin
from astune.rollout.setup import RolloutSetup
from astune.task_judge import TaskJudges, make_judge
from astune.tools import ToolServers
from astune.types import Generation, Policy, Sampling
from astune.workflow.named_texts import NamedTexts, texts_of
from astune.workflow.workflow_base import as_workflow, find_missing_text
from astune.workspaces.pool import WorkspacePool


@dataclass(frozen=True)
class NoPolicy:
    """Lends a run its context length where something else answers in the policy's place, or nothing is asked."""

    context_length: int

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        raise PolicyError("this run has no policy that answers")


def rollout_setup(config: AstuneConfig, policy: Policy, chat_format: ChatFormat) -> RolloutSetup:
    """Workflow, judge and auxiliary models of the configuration around a policy."""
    return replace(
        workflow_setup(config, policy, chat_format),
        judge=make_judge(config.task_judge),
        task_judges=TaskJudges(config.task_judge),
    )


def workflow_setup(config: AstuneConfig, policy: Policy, chat_format: ChatFormat) -> RolloutSetup:
    """Set up the same without judges, to play attempts that are judged elsewhere."""
    protocol = config.rollout.agentscope_learn_protocol
    assert protocol is not None, "astune.config.rules refuses a configuration without a workflow"
    workflow = as_workflow(load_plugin(protocol, kind="workflow"))
    texts = texts_of(config.prompts)
    if wanted := find_missing_text(workflow, texts):
        raise ConfigError(wanted)
    service = config.task_reader.env_service
    return RolloutSetup(
        policy=policy,
        chat_format=chat_format,
        workflow_factory=workflow,
        judge=None,
        config=config.rollout,
        judge_timeout=config.task_judge.seconds,
        auxiliary_models={
            name: ChatClient(name, model, key=f"astune.rollout.auxiliary_models.{name}")
            for name, model in config.rollout.auxiliary_models.items()
        },
        models=agent_models(config, load_formats(config, chat_format)),
        texts=NamedTexts(texts),
        environments=environments_of(service),
        tools=ToolServers(config.tools),
        workspaces=None if config.rollout.workspace.type is None else WorkspacePool(config.rollout.workspace),
        environment_params=service.params,
    )


def agent_models(config: AstuneConfig, formats: Mapping[str, ChatFormat]) -> AgentModels:
    """Say which agents run on which of the models of a run, and whose turns are trained."""
    return AgentModels(
        {name: model.learns for name, model in config.models.items()},
        dict(config.rollout.agents),
        trained_agents=config.algorithm.trained_agents,
        formats=formats,
    )


def environments_of(config: EnvServiceConfig) -> EnvServiceClient | None:
    """Make the client that asks for instances of environments; None where no service is named."""
    return None if config.env_url is None else EnvServiceClient.of(config)


def sampling_for(config: AstuneConfig, decoding: Literal["sampled", "greedy"]) -> Sampling:
    """Draw answers as in training, or greedily, unless the agent asks otherwise."""
    rollout = config.rollout
    if decoding == "greedy":
        return Sampling(max_tokens=rollout.max_tokens, temperature=0.0)
    return Sampling(rollout.max_tokens, rollout.temperature, rollout.top_p, rollout.top_k)


def weighting_for(config: AstuneConfig) -> Weighting:
    """Weight trained tokens in the loss as `astune.algorithm` says."""
    algorithm = config.algorithm
    return Weighting(algorithm.loss_aggregation, algorithm.credit, config.rollout.max_tokens)


@contextmanager
def environment_service(config: AstuneConfig) -> Iterator[AstuneConfig]:
    """Yield `config` with the address of the service that it says to start; the service runs as long as the block."""
    with own_service(config.task_reader.env_service) as service:
        reader = config.task_reader.model_copy(update={"env_service": service})
        yield config.model_copy(update={"task_reader": reader})
