"""Lend an episode its workspace before its clock starts, and read what became of it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

from astune.errors import AstuneError, EnvServiceError
from astune.rollout.setup import RolloutSetup
from astune.types import Episode
from astune.workflow.tuner import Tuner
from astune.workspaces.pool import Lease

logger = logging.getLogger(__name__)


@asynccontextmanager
async def lend_workspace(tuner: Tuner, setup: RolloutSetup) -> AsyncIterator[None]:
    """The episode has its workspace within the block. One that cannot be had is the episode's error."""
    async with AsyncExitStack() as stack:
        if setup.workspaces is not None:
            try:
                tuner.lease = await stack.enter_async_context(setup.workspaces.lease(tuner.task.task_id))
            except AstuneError as error:
                tuner.no_workspace = EnvServiceError(str(error))
        if tuner.lease is not None and tuner.lease.sandbox is not None:
            tuner.tool_log.sandbox_failures = tuner.lease.sandbox.failures
        yield


async def with_artifacts(episode: Episode, tuner: Tuner, setup: RolloutSetup) -> Episode:
    """The episode with its files, where they are kept; without them its judge has an error, and no reward."""
    most = setup.config.workspace.artifacts_mb
    if tuner.lease is None or tuner.lease.sandbox is None or not most:
        return episode
    try:
        return replace(episode, artifacts=await tuner.lease.sandbox.pack(most << 20))
    except EnvServiceError as error:
        logger.warning("%s has no files: %s", episode.episode_id, error)
        return episode


def figures_of(lease: Lease | None) -> dict[str, float]:
    """The figures of the workspace: how many commands met which limit, and whether nothing isolated them."""
    if lease is None:
        return {}
    ended = {} if lease.sandbox is None else lease.sandbox.ended
    return {**lease.figures, **{f"sandbox/{limit}": float(number) for limit, number in ended.items()}}
