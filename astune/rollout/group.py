"""Several attempts at one task, side by side: the unit that advantages compare."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Callable
from typing import TypeVar

from astune.rollout.episode import judge_together, run_episode
from astune.rollout.setup import RolloutSetup
from astune.support.concurrency import all_or_none
from astune.task_judge.judge_base import GroupJudge
from astune.types import Episode, Group, Sampling, Task

T = TypeVar("T")

OnEpisode = Callable[[Episode], None]
"""Called in the event loop as each episode ends, in the order in which they end."""


async def run_group(
    task: Task,
    n: int,
    setup: RolloutSetup,
    *,
    seed: int,
    sampling: Sampling,
    on_episode: OnEpisode | None = None,
    label: str = "group",
    limit: asyncio.Semaphore | None = None,
) -> Group:
    """`n` attempts at `task`. Episode `i` is called `label/task_id/i`, and its seed depends on nothing but `seed`
    and this name, so neither timing nor neighbours change what it samples.

    `limit` bounds the episodes under way, here and wherever else it is used. A judge that compares attempts is asked
    when all have ended.
    """
    judge = setup.judge_of(task)
    together = isinstance(judge, GroupJudge)

    async def attempt(i: int) -> Episode:
        episode_id = f"{label}/{task.task_id}/{i}"
        async with limit or contextlib.nullcontext():
            episode = await run_episode(
                task,
                setup,
                episode_id=episode_id,
                seed=episode_seed(seed, episode_id),
                sampling=sampling,
                judged=not together,
            )
        if on_episode is not None and not together:
            on_episode(episode)
        return episode

    episodes = await all_or_none([attempt(i) for i in range(n)])
    if isinstance(judge, GroupJudge):
        episodes = await judge_together(episodes, judge, setup)
        if on_episode is not None:
            for episode in episodes:
                on_episode(episode)
    return Group(task, tuple(episodes))


def episode_seed(seed: int, episode_id: str) -> int:
    """A seed below 2**48 from the run's seed and the episode's name: the same in every process and on every machine."""
    digest = hashlib.blake2b(f"{seed}/{episode_id}".encode(), digest_size=6).digest()
    return int.from_bytes(digest, "big")
