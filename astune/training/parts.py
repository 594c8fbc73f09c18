"""From a configuration to the parts of a run that every backbone puts together the same way."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from astune.algorithm import Weighting
from astune.clients.chat import ChatClient
from astune.clients.env_service import EnvServiceClient
from astune.clients.own_env_service import own_service
from astune.config.schema import AstuneConfig, ModelConfig
from astune.config.tasks import EnvServiceConfig
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.errors import PolicyError
from astune.plugins import load_plugin
from astune.rollout.environment import check_environments
from astune.rollout.setup import RolloutSetup
from astune.support.terminal import Console
from astune.task_judge import Scorers, make_judge
from astune.task_judge.registry import import_registered
from astune.task_judge.scorers import scorer_of
from astune.task_reader.task_reader_base import SPLITS
from astune.task_reader.task_sets import TaskSets, read_task_sets
from astune.types import Generation, Policy, Sampling, Task
from astune.workflow.workflow_base import as_workflow

logger = logging.getLogger(__name__)


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


@contextmanager
def environment_service(config: AstuneConfig) -> Iterator[AstuneConfig]:
    """`config` with the address of the environment service that it says to start, which runs as long as the block."""
    with own_service(config.task_reader.env_service) as service:
        reader = config.task_reader.model_copy(update={"env_service": service})
        yield config.model_copy(update={"task_reader": reader})


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
        environments=environments_of(service),
        environment_params=service.params,
    )


def environments_of(config: EnvServiceConfig) -> EnvServiceClient | None:
    """What asks for instances of environments; None where no service is named."""
    return None if config.env_url is None else EnvServiceClient.of(config)


def read_tasks(config: AstuneConfig) -> TaskSets:
    """The tasks of a run, all read and checked: each has a judge if it names one, and a service if it has an
    environment. What is left out or may be wrong is logged."""
    kinds = _Kinds()
    with Console(stderr=True).status("reading tasks"):  # shows itself on a terminal only
        sets = read_task_sets(config.task_reader, kinds.add)
    kinds.check(config)
    for warning in sets.warnings:
        logger.warning(warning)
    for split in SPLITS:
        if skipped := sets.of(split).skipped:
            logger.warning(
                "%s bad %s records are left out, the first: %s (`astune tasks preview` lists all)",
                f"{len(skipped):,}",
                split,
                skipped[0],
            )
    return sets


def check_tasks(tasks: Iterable[Task], config: AstuneConfig) -> None:
    """Whether tasks can be played and judged as they ask for. Raises TaskError, PluginError or ConfigError."""
    kinds = _Kinds()
    for task in tasks:
        kinds.add(task)
    kinds.check(config)


class _Kinds:
    """The first task of each kind: what a task asks for decides whether it can be played and judged."""

    def __init__(self) -> None:
        self._first: dict[tuple[str | None, ...], Task] = {}

    def add(self, task: Task) -> None:
        self._first.setdefault((task.env_type, *scorer_of(task)), task)

    def check(self, config: AstuneConfig) -> None:
        tasks = self._first.values()
        scorers = Scorers(config.task_judge)
        import_registered(scorers.specs(tasks), config.rollout.agentscope_learn_protocol)
        scorers.check(tasks)
        check_environments(tasks, config.task_reader.env_service)


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
