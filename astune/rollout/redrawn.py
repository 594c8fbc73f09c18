"""Attempts played again with the answers of one agent drawn anew: what were they worth, had it said something else?

    an attempt           planner p1   worker w1    reward 1
    redrawn: planner     planner p2   worker ..    reward 0     the planner gained 1
    redrawn: worker      planner p1   worker w2    reward 1     the worker 0

Everything else is drawn from the seed of the attempt, so that what differs is the agent's doing: this is the
counterfactual baseline of COMA (Foerster et al., arXiv 1705.08926), with draws in the place of its critic. It takes a
world, a judge and an engine that go the same way twice. Whether they do is looked at: up to the first answer of the
agent both attempts must have the same ids.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import replace

from astune.algorithm.batch_rules import REDRAWN, list_trained
from astune.errors import ConfigError
from astune.rollout.episode import run_episode
from astune.rollout.group import OnEpisode, episode_seed
from astune.rollout.setup import RolloutSetup
from astune.support.concurrency import all_or_none
from astune.types import Episode, Group, Sampling, Task, Turn


def list_agents(episode: Episode, models: Collection[str]) -> list[str]:
    """List the agents of a judged attempt that are trained, of those models; "" is the only one."""
    turns = () if episode.verdict is None else episode.turns
    return list_trained(turn for turn in turns if turn.model in models)


def count_again(groups: Sequence[Group], models: Collection[str]) -> int:
    """Count the attempts that `play_redrawn` plays."""
    return sum(len(list_agents(episode, models)) for group in groups for episode in group.episodes)


def check_judges(tasks: Sequence[Task], attempts: int, setup: RolloutSetup) -> None:
    """Raises ConfigError where the attempts at a task are judged by comparison."""
    for task in tasks:
        if setup.group_judge(task, attempts) is not None:
            raise ConfigError(
                "astune.algorithm.agent_reward: with 'leave_one_out' each attempt is judged by itself, and the judge "
                f"of task {task.task_id!r} compares those at a task; expected 'own', 'same' or 'difference'"
            )


async def play_redrawn(
    groups: Sequence[Group],
    setup: RolloutSetup,
    models: Collection[str],
    *,
    seed: int,
    sampling: Sampling,
    max_concurrent: int,
    on_episode: OnEpisode,
) -> tuple[list[Group], list[Episode]]:
    """Play each judged attempt of `run_groups` once again for each of its trained agents that run on `models`. Returns
    the groups, their attempts with the rewards of those that went the same way (`Episode.metrics`, REDRAWN), and all
    that were played."""
    limit = asyncio.Semaphore(max_concurrent)

    async def play(episode: Episode, agent: str) -> Episode:
        of_group = episode.episode_id.rpartition("/")[0]
        async with limit:
            again = await run_episode(
                episode.task,
                setup,
                episode_id=f"{episode.episode_id}~{agent}",
                seed=episode_seed(seed, episode.episode_id),
                sampling=sampling,
                drawn=setup.draw_versions(episode_seed(seed, of_group)),
                redrawn=agent,
            )
        on_episode(again)
        return again

    asked = [(each, agent) for group in groups for each in group.episodes for agent in list_agents(each, models)]
    played = await all_or_none([play(*each) for each in asked])
    found: dict[str, dict[str, float]] = {}
    for (episode, agent), again in zip(asked, played, strict=True):
        if again.reward is not None and goes_alike(episode, again, agent):
            found.setdefault(episode.episode_id, {})[REDRAWN + agent] = again.reward
    told = [
        replace(
            group,
            episodes=tuple(
                replace(each, metrics={**each.metrics, **found.get(each.episode_id, {})}) for each in group.episodes
            ),
        )
        for group in groups
    ]
    return told, played


def goes_alike(episode: Episode, again: Episode, agent: str) -> bool:
    """Tell whether both went the same way until the agent was asked. Calls side by side may end in another order."""
    first = next(number for number, turn in enumerate(episode.turns) if turn.agent == agent)
    said = {_list_ids(turn) for turn in again.turns}
    asked = {tuple(turn.prompt_ids) for turn in again.turns if turn.agent == agent}
    before = episode.turns[:first]
    return all(_list_ids(turn) in said for turn in before) and tuple(episode.turns[first].prompt_ids) in asked


def _list_ids(turn: Turn) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    return turn.agent, tuple(turn.prompt_ids), tuple(turn.output_ids)
