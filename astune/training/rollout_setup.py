"""Put the parts of a rollout together, as the configuration names them, around any policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from astune.clients.chat import ChatClient
from astune.clients.env_service import EnvServiceClient
from astune.config.schema import AstuneConfig
from astune.config.tasks import EnvServiceConfig
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.errors import PolicyError
from astune.plugins import load_plugin
from astune.rollout.setup import RolloutSetup
from astune.task_judge import TaskJudges, make_judge
from astune.types import Generation, Policy, Sampling
from astune.workflow.workflow_base import as_workflow


@dataclass(frozen=True)
class NoPolicy:
    """Lends a run its context length where something else answers in the policy's place."""

    context_length: int

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        raise PolicyError("a source answers in the policy's place in this run")


def rollout_setup(config: AstuneConfig, policy: Policy, chat_format: ChatFormat) -> RolloutSetup:
    """Workflow, judge and auxiliary models of the configuration around a policy."""
    protocol = config.rollout.agentscope_learn_protocol
    assert protocol is not None, "astune.config.rules refuses a configuration without a workflow"
    workflow = load_plugin(protocol, kind="workflow")
    service = config.task_reader.env_service
    return RolloutSetup(
        policy=policy,
        chat_format=chat_format,
        workflow_factory=as_workflow(workflow),
        judge=make_judge(config.task_judge),
        config=config.rollout,
        task_judges=TaskJudges(config.task_judge),
        judge_timeout=config.task_judge.seconds,
        auxiliary_models={
            name: ChatClient(name, model, key=f"astune.rollout.auxiliary_models.{name}")
            for name, model in config.rollout.auxiliary_models.items()
        },
        environments=environments_of(service),
        environment_params=service.params,
    )


def environments_of(config: EnvServiceConfig) -> EnvServiceClient | None:
    """Make the client that asks for instances of environments; None where no service is named."""
    return None if config.env_url is None else EnvServiceClient.of(config)
