"""Make the environment of an episode when it begins, have it scored when it ends, and release it."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Iterable
from dataclasses import replace

from astune.clients.env_service import EnvInstance, EnvServiceClient
from astune.config.tasks import EnvServiceConfig
from astune.errors import ConfigError, EnvServiceError
from astune.rollout.setup import RolloutSetup
from astune.task_reader.held_out import world_of
from astune.types import Episode, Task
from astune.workflow.environment import TaskEnvironment
from astune.workflow.tuner import Tuner

logger = logging.getLogger(__name__)

RELEASE_SECONDS = 10.0
"""An instance that is not released by then is left to its service."""
MOST_OF_AN_ID = 400
"""Characters of an episode's name in that of its instance, which services may limit (ours to 512)."""
CANCELLED_SECONDS = 3.0
"""Seconds that a cancelled episode waits for the release, so that a run that ends leaves nothing behind."""


def check_environments(tasks: Iterable[Task], config: EnvServiceConfig) -> None:
    """Raises ConfigError if a task has an `env_type` and no service is configured."""
    if config.env_url is not None or config.serve is not None:
        return
    for task in tasks:
        if task.env_type is not None:
            place = f" ({task.place})" if task.place else ""
            raise ConfigError(
                f"task {task.task_id!r}{place} has the env_type {task.env_type!r}, but nothing says where its "
                "environment is served: set astune.task_reader.env_service.env_url to the address of a service, or "
                "astune.task_reader.env_service.serve to an environment, as gymnasium:FrozenLake-v1"
            )


async def enter_environment(tuner: Tuner, setup: RolloutSetup) -> None:
    """Makes the instance of a task with an `env_type`. Raises EnvServiceError.

    The instance is named before it is made, and no other has its name: it is released even if its making was cut
    short, and neither a resumed run nor a second one at the same service can meet it.
    """
    client, task = setup.environments, tuner.task
    if client is None or task.env_type is None:
        return
    name = f"{tuner.episode_id[:MOST_OF_AN_ID]}-{uuid.uuid4().hex[:12]}"
    instance = EnvInstance(client.url, name, task.env_type, world_of(task))
    tuner.instance = instance
    first = await client.create(task.env_type, world_of(task), name, setup.environment_params)
    tuner.enter(TaskEnvironment(client, instance, first, tuner.failures))


async def with_score(episode: Episode, instance: EnvInstance | None, setup: RolloutSetup) -> Episode:
    """`episode` with the score that its environment gives it, or the reason why there is none."""
    if instance is None:
        return episode
    try:
        score = await _client(instance, setup).evaluate(instance)
    except EnvServiceError as error:
        logger.warning("%s has no score: %s", episode.episode_id, error)
        return replace(episode, env_error=str(error))
    return replace(episode, env_score=score)


async def release(instance: EnvInstance | None, setup: RolloutSetup) -> None:
    """Gives the instance back. Never raises for what the service does. Whoever is cancelled in the meantime waits a
    moment at most; the request goes on."""
    if instance is None:
        return
    job = asyncio.ensure_future(_release(instance, setup))
    try:
        await asyncio.shield(job)
    except asyncio.CancelledError:
        await asyncio.wait({job}, timeout=CANCELLED_SECONDS)
        raise


async def _release(instance: EnvInstance, setup: RolloutSetup) -> None:
    try:
        await asyncio.wait_for(_client(instance, setup).release(instance), RELEASE_SECONDS)
    except asyncio.TimeoutError:
        _not_released(instance, f"no answer within {RELEASE_SECONDS:g} s")
    except EnvServiceError as error:
        _not_released(instance, str(error))


def _not_released(instance: EnvInstance, why: str) -> None:
    logger.warning("environment %s was not released: %s", instance.instance_id, why)


def _client(instance: EnvInstance, setup: RolloutSetup) -> EnvServiceClient:
    """The run's own client, or one for the service that the workflow named, which has as long as a judge."""
    if setup.environments is not None and setup.environments.url == instance.url.rstrip("/"):
        return setup.environments
    return EnvServiceClient(instance.url, timeout=setup.judge_timeout, retries=0)
