"""The sampler answers agents in other processes as it does its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from astune.backbone.local.engine import load_engine
from astune.config.schema import AstuneConfig
from astune.rollout.group import run_groups
from astune.training.rollout_setup import sampling_for
from astune.training.rollout_workers.pool import set_up_rollouts
from astune.types import Episode, Task

AGENTS = Path(__file__).parents[2] / "training" / "worker_agents.py"
TASKS = [Task(f"t{number}", f"What is {number} + {number * 7}?") for number in range(5)]


def config_of(workers: int, max_concurrent: int) -> AstuneConfig:
    rollout = {
        "agentscope_learn_protocol": f"{AGENTS}:talks",
        "workers": workers,
        "max_concurrent": max_concurrent,
        "max_tokens": 6,
    }
    return AstuneConfig.model_validate({"rollout": rollout})


async def played(workers: int, max_concurrent: int, seed: int) -> list[Episode]:
    config = config_of(workers, max_concurrent)
    setup = set_up_rollouts(config, load_engine(config))
    async with setup.open():
        groups = await run_groups(
            TASKS,
            3,
            setup,
            seed=seed,
            sampling=sampling_for(config, "sampled"),
            max_concurrent=max_concurrent,
            label="train/1",
        )
    return [replace(episode, metrics={}) for group in groups for episode in group.episodes]


def tokens(episodes: list[Episode]) -> list[list[tuple[int, ...]]]:
    return [[tuple(turn.output_ids) for turn in episode.turns] for episode in episodes]


async def test_a_seed_gives_the_same_tokens_with_any_number_of_workers() -> None:
    alone, one, two = [await played(workers, 8, seed=3) for workers in (0, 1, 2)]
    assert tokens(alone) == tokens(one) == tokens(two)
    assert one == two  # log-probabilities as well, to the last bit
    assert sum(len(episode.turns) for episode in alone) == 30
