"""Many groups at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from astune.rollout.group import OnEpisode, run_group
from astune.rollout.setup import RolloutSetup
from astune.support.concurrency import all_or_none
from astune.types import Group, Sampling, Task

__all__ = ["RolloutSetup", "run_groups"]


async def run_groups(
    tasks: Sequence[Task],
    n: int,
    setup: RolloutSetup,
    *,
    seed: int,
    sampling: Sampling,
    max_concurrent: int,
    label: str,
    on_episode: OnEpisode | None = None,
) -> list[Group]:
    """`n` attempts at each task, at most `max_concurrent` episodes under way; groups in the order of `tasks`.

    Episodes start in the order of tasks, the attempts at one task together, so that an engine can share their
    prompt. An episode that fails is data and stops nothing; cancelling this cancels all that are under way.

        groups = await run_groups(tasks, 8, setup, seed=42, sampling=Sampling(max_tokens=256),
                                  max_concurrent=64, label="train/0")
    """
    limit = asyncio.Semaphore(max_concurrent)
    groups = [
        run_group(task, n, setup, seed=seed, sampling=sampling, on_episode=on_episode, label=label, limit=limit)
        for task in tasks
    ]
    return await all_or_none(groups)
