"""Play all attempts at one task with `run_group`, as every backbone does, in a workflow runner of Trinity's."""

from __future__ import annotations

import asyncio
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from trinity.common.experience import Experience
from trinity.common.workflows.workflow import Task as TrinityTask
from trinity.common.workflows.workflow import Workflow

from astune.backbone.trinity.explorer.experience import pack_episode, portable
from astune.backbone.trinity.explorer.policy import policy_for
from astune.backbone.trinity.explorer.shared_setup import share_setup
from astune.backbone.trinity.shared.events import EpisodeDone, Warned
from astune.backbone.trinity.shared.mailbox import post
from astune.backbone.trinity.shared.parts import RunParts, load_parts
from astune.monitor.blocking import LoopWatch
from astune.rollout.group import run_group
from astune.rollout.setup import RolloutSetup
from astune.training.rollout_setup import sampling_for
from astune.types import Task

if TYPE_CHECKING:
    from trinity.common.models.model import ModelWrapper


class AstuneWorkflow(Workflow):  # type: ignore[misc]
    """One experience per episode, which only carries the episode: what is trained is decided where all groups of the
    step are together (`explorer/samples.py`). Nothing that an episode does makes this raise, so Trinity retries
    nothing; a workflow whose `setup` fails does, and ends the run."""

    is_async = True
    can_repeat = True

    def __init__(self, *, task: TrinityTask, model: ModelWrapper, auxiliary_models: Any = None) -> None:
        super().__init__(task=task, model=model, auxiliary_models=auxiliary_models)
        self._repeat = 1

    def set_repeat_times(self, repeat_times: int, run_id_base: int) -> None:
        if run_id_base:
            raise ValueError("a group is played in one place: leave explorer.max_repeat_times_per_runner unset")
        self._repeat = repeat_times

    async def run_async(self) -> list[Experience]:
        parts = load_parts(self.task.workflow_args)
        step = int(self.task.batch_id)
        setup = setup_for(parts, self.model)
        async with share_setup(setup):
            with LoopWatch(lambda text: post(Warned(text))):
                group = await run_group(
                    Task(**self.task.raw_task),
                    self._repeat,
                    setup,
                    seed=parts.config.seed,
                    sampling=sampling_for(parts.config, "sampled"),
                    label=f"train/{step}",
                    on_episode=lambda episode: post(EpisodeDone(portable(episode), step, "train")),
                    limit=asyncio.Semaphore(parts.config.rollout.max_concurrent),
                )
        return [pack_episode(episode, run) for run, episode in enumerate(group.episodes)]


@lru_cache(maxsize=4)
def setup_for(parts: RunParts, model: ModelWrapper) -> RolloutSetup:
    """The rollout's parts over one engine: a runner plays many tasks on the same one."""
    return parts.rollout_setup(policy_for(model))
