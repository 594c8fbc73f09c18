"""What becomes of the environment that a workflow used: it is asked for its score, and released."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from astune.clients.env_service import EnvInstance, EnvServiceClient
from astune.errors import RolloutError
from astune.types import Episode

logger = logging.getLogger(__name__)

RELEASE_SECONDS = 10.0
"""An instance that is not released by then is left to its service."""


async def with_score(episode: Episode, instance: EnvInstance | None, seconds: float) -> Episode:
    """`episode` with what its environment says of it within `seconds`: a score, or why there is none."""
    if instance is None:
        return episode
    try:
        score = await EnvServiceClient(timeout=seconds).evaluate(instance)
    except RolloutError as error:
        logger.warning("%s has no score: %s", episode.episode_id, error)
        return replace(episode, env_error=str(error))
    return replace(episode, env_score=score)


async def release(instance: EnvInstance | None) -> None:
    """Gives the instance back. Never raises for what the service does; whoever is cancelled in the meantime does not
    wait, but the request goes on."""
    if instance is not None:
        await asyncio.shield(asyncio.ensure_future(_release(instance)))


async def _release(instance: EnvInstance) -> None:
    try:
        await EnvServiceClient(timeout=RELEASE_SECONDS).release(instance)
    except RolloutError as error:
        logger.warning("environment %s was not released: %s", instance.instance_id, error)
