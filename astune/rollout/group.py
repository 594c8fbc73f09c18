"""Several attempts at one task, the unit that advantages compare; and many tasks at once."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterable, Callable, Sequence
from typing import TypeAlias

from astune.rollout.episode import run_episode
from astune.rollout.setup import RolloutSetup
from astune.rollout.verdict import judge_together
from astune.support.concurrency import all_or_none
from astune.types import Episode, Group, Sampling, Task

OnEpisode = Callable[[Episode], None]
"""Called in the event loop as each episode ends, in the order in which they end."""
Limit: TypeAlias = contextlib.AbstractAsyncContextManager[object]
"""Entered for as long as an episode is under way, by many at once."""


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
    limit: Limit | None = None,
) -> list[Group]:
    """Make `n` attempts at each task and return the groups in the order of `tasks`. At most `max_concurrent` episodes
    run at once; a `limit`, which other rollouts may share, takes the place of that number.

    Episodes start in the order of tasks, the attempts at one task together, so that an engine can share their
    prompt. An episode that fails is data and stops nothing; cancelling this cancels all that are under way.

        groups = await run_groups(tasks, 8, setup, seed=42, sampling=Sampling(max_tokens=256),
                                  max_concurrent=64, label="train/0")
    """
    limit = limit or asyncio.Semaphore(max_concurrent)
    groups = [
        run_group(task, n, setup, seed=seed, sampling=sampling, on_episode=on_episode, label=label, limit=limit)
        for task in tasks
    ]
    return await all_or_none(groups)


async def run_group(
    task: Task,
    n: int,
    setup: RolloutSetup,
    *,
    seed: int,
    sampling: Sampling,
    on_episode: OnEpisode | None = None,
    label: str = "group",
    limit: Limit | None = None,
    in_turn: AsyncIterable[str] | None = None,
) -> Group:
    """`n` attempts at `task`. Episode `i` is called `label/task_id/i`, and its seed depends on nothing but `seed`
    and this name, so neither timing nor neighbours change what it samples.

    `limit` bounds the episodes under way, here and wherever else it is used. A judge that compares attempts is asked
    when all have ended; a lone attempt is judged by itself.

    With `in_turn`, attempts go one after another under the names that it gives. The next name is asked for when the
    episode before has ended, so there may be more than `n`: the debugger branches off what it has seen.
    """
    group_judge = setup.group_judge(task, n)
    drawn = setup.draw_versions(episode_seed(seed, f"{label}/{task.task_id}"))  # all attempts meet the same opponents

    async def attempt(name: str) -> Episode:
        async with limit or contextlib.nullcontext():
            episode = await run_episode(
                task,
                setup,
                episode_id=name,
                seed=episode_seed(seed, name),
                sampling=sampling,
                judged=group_judge is None,
                drawn=drawn,
            )
        if on_episode is not None and group_judge is None:
            on_episode(episode)
        return episode

    if in_turn is None:
        episodes = await all_or_none([attempt(f"{label}/{task.task_id}/{i}") for i in range(n)])
    else:
        episodes = [await attempt(name) async for name in in_turn]
    if group_judge is not None:
        episodes = await judge_together(episodes, group_judge, setup)
        if on_episode is not None:
            for episode in episodes:
                on_episode(episode)
    return Group(task, tuple(episodes))


def episode_seed(seed: int, episode_id: str) -> int:
    """A seed below 2**48 from the run's seed and the episode's name: the same in every process and on every machine."""
    digest = hashlib.blake2b(f"{seed}/{episode_id}".encode(), digest_size=6).digest()
    return int.from_bytes(digest, "big")
