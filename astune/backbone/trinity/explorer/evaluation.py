"""Play held-out tasks on the engines of a Trinity run, between two batches of exploration.

Trinity evaluates a step with the weights before that step's update, and the last weights not at all. So evaluations are
played here, by the task reader, which Trinity asks for the next tasks right after it has synchronised the weights.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace

from trinity.common.models.allocator import Allocator
from trinity.common.models.model import ModelWrapper

from astune.backbone.trinity.explorer.experience import portable
from astune.backbone.trinity.explorer.shared_setup import share_setup
from astune.backbone.trinity.explorer.workflow import setup_for
from astune.backbone.trinity.shared.events import EpisodeDone, EvaluationDone, EvaluationStarted
from astune.backbone.trinity.shared.mailbox import find_mailbox, post
from astune.backbone.trinity.shared.parts import RunParts
from astune.rollout.group import run_groups
from astune.rollout.metrics import evaluation_metrics
from astune.support.concurrency import all_or_none
from astune.training.held_out import Evaluation
from astune.training.rollout_setup import sampling_for
from astune.types import Episode, Group


@dataclass
class Evaluations:
    """Plays evaluations in the process that reads the tasks, which decides when they are due."""

    parts: RunParts
    _engines: tuple[ModelWrapper, ...] = ()

    async def run(self, step: int, due: Sequence[Evaluation]) -> None:
        """Play those that are due; `step` counts the steps done."""
        if not self._engines:
            self._engines = await find_engines()
        for evaluation in due:
            started = time.perf_counter()
            post(EvaluationStarted(step, evaluation.name, len(evaluation.tasks) * evaluation.attempts))
            groups = await self._play(step, evaluation)
            metrics = evaluation_metrics(groups, time.perf_counter() - started)
            post(EvaluationDone(step, evaluation.name, metrics))

    async def _play(self, step: int, evaluation: Evaluation) -> list[Group]:
        """The tasks dealt out to the engines, each with its share of the episodes under way."""
        config, count = self.parts.config, len(self._engines)
        setups = [replace(setup_for(self.parts, engine), judges_alone=True) for engine in self._engines]

        def tell(episode: Episode) -> None:
            post(EpisodeDone(portable(episode), step, f"eval/{evaluation.name}"))

        work = [
            run_groups(
                evaluation.tasks[number::count],
                evaluation.attempts,
                setup,
                seed=config.seed,
                sampling=sampling_for(config, evaluation.decoding),
                max_concurrent=max(1, config.rollout.max_concurrent // count),
                label=f"eval/{evaluation.name}/{step}",
                on_episode=tell,
            )
            for number, setup in enumerate(setups)
        ]
        async with share_setup(setups[0].workflow_factory):
            return [group for groups in await all_or_none(work) for group in groups]


async def find_engines() -> tuple[ModelWrapper, ...]:
    """All rollout engines of the run."""
    config, explorer = await find_mailbox().engine.remote()
    allocator = Allocator(SimpleNamespace(name=explorer))  # all that it takes of the explorer's configuration
    engines = tuple(allocator.get_model(config, "rollout", number) for number in range(config.engine_num))
    await all_or_none([engine.prepare() for engine in engines])
    return engines
