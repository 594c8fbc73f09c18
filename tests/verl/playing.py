"""Episodes on an engine on Ray, played by workers of `astune.rollout.workers` and in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from astune.rollout.group import run_groups
from astune.rollout.setup import RolloutSetup
from astune.training.engine import Engine
from astune.training.rollout_setup import sampling_for
from astune.training.rollout_workers.pool import EpisodeWorkers, set_up_rollouts
from astune.types import Episode, Task
from tests.verl.on_ray import demo

AGENTS = Path(__file__).with_name("actor_agents.py")
TASKS = [Task(f"t{number}", f"What is {number} + {number * 7}?", answer="4") for number in range(3)]


class Playing:
    """Two workers, one on each node, and what plays without them; on one event loop."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        self.runner, self.folder = asyncio.Runner(), folder
        rollout = f"astune.rollout.agentscope_learn_protocol={AGENTS}:talks"
        limits = ("astune.rollout.max_turns=2", "astune.rollout.max_tokens=6", "astune.rollout.episode_timeout=300")
        alone, actors = (demo(rollout, *limits, f"astune.rollout.workers={n}").config.astune for n in (0, 2))
        self.config, self.alone, self.setup = actors, set_up_rollouts(alone, engine), set_up_rollouts(actors, engine)
        assert isinstance(self.setup.player, EpisodeWorkers)
        self.player = self.setup.player

    async def play(self, setup: RolloutSetup, *tasks: Task, label: str) -> list[Episode]:
        sampling = sampling_for(self.config, "sampled")
        groups = await run_groups(tasks, 3, setup, seed=3, sampling=sampling, max_concurrent=16, label=label)
        return [episode for group in groups for episode in group.episodes]

    def both(self, task: Task, label: str) -> tuple[list[Episode], list[Episode]]:
        """By workers, and in this process."""
        return tuple(self.runner.run(self.play(setup, task, label=label)) for setup in (self.setup, self.alone))

    async def all_ready(self) -> None:
        while not all(worker.ready for worker in self.player.workers):
            await asyncio.sleep(0.1)

    async def begun(self, task: Task, number: int = 3) -> None:
        """Once so many attempts at a task wait for a file."""
        while len(list(self.folder.glob(f"begun-{task.task_id}-*"))) < number:
            await asyncio.sleep(0.05)


def what_came(episodes: Sequence[Episode]) -> list[object]:
    """All but times and the last bits of log-probabilities."""
    return [
        (each.episode_id, each.stop_reason, [tuple(turn.output_ids) for turn in each.turns], each.output)
        for each in episodes
    ]
