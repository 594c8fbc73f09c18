"""Hand Trinity the tasks of each step, in the order that every backbone gives them, and evaluate between the steps."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import ray
from trinity.buffer.buffer_reader import BufferReader
from trinity.common.config import StorageConfig
from trinity.common.models.allocator import Allocator
from trinity.common.models.model import ModelWrapper
from trinity.common.workflows.workflow import Task as TrinityTask

from astune.backbone.trinity.explorer.experience import portable
from astune.backbone.trinity.explorer.shared_setup import share_setup
from astune.backbone.trinity.explorer.workflow import AstuneWorkflow, setup_for
from astune.backbone.trinity.shared.events import EpisodeDone, EvaluationDone, EvaluationStarted, ExploreStarted
from astune.backbone.trinity.shared.mailbox import find_mailbox, post
from astune.backbone.trinity.shared.parts import RunParts, load_parts
from astune.rollout.group import run_groups
from astune.rollout.metrics import evaluation_metrics
from astune.support.concurrency import all_or_none
from astune.training.held_out import Evaluation, evaluations_left, evaluations_of
from astune.training.rollout_setup import sampling_for
from astune.training.schedule import TaskSchedule
from astune.training.tasks import read_tasks
from astune.types import Episode, Group, Task
from astune.workflow.lifetime import TEARDOWN_SECONDS


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
        first = setup_for(self.parts, self._engines[0])
        setups = [
            replace(setup_for(self.parts, each), judges_alone=True, tools=first.tools, workspaces=first.workspaces)
            for each in self._engines
        ]

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
        async with share_setup(setups[0]):
            return [group for groups in await all_or_none(work) for group in groups]


async def find_engines() -> tuple[ModelWrapper, ...]:
    """All rollout engines of the run."""
    config, explorer = await find_mailbox().engine.remote()
    allocator = Allocator(SimpleNamespace(name=explorer))  # all that it takes of the explorer's configuration
    engines = tuple(allocator.get_model(config, "rollout", number) for number in range(config.engine_num))
    await all_or_none([engine.prepare() for engine in engines])
    return engines


class AstuneTaskReader(BufferReader):  # type: ignore[misc]
    """One batch for each step of `astune.trainer`; a resumed run goes on with the batch after `config.index`."""

    def __init__(self, config: StorageConfig) -> None:
        self._arguments = config.workflow_args
        self._repeat = config.repeat_times
        self._rollout = config.rollout_args
        self._parts = load_parts(self._arguments)
        settings = self._parts.config
        tasks = read_tasks(settings)
        self._schedule = TaskSchedule(tasks.training, settings)
        self._evaluations = evaluations_of(settings.evaluation, tasks)
        self._evaluating = Evaluations(self._parts)
        self._per_step = settings.trainer.tasks_per_step
        self._step = config.index // self._per_step
        self._resumed = self._step > 0
        self._read_any = False

    def __len__(self) -> int:
        return self._schedule.total_steps * self._per_step

    async def read(self, batch_size: int | None = None, **kwargs: Any) -> list[TrinityTask]:
        """The next batch, after the evaluation that is due before it. Raises StopAsyncIteration after the last."""
        if self._resumed and not self._read_any:
            await fetch_weights()
        if due := self._due():
            await self._evaluating.run(self._step, due)
        if self._step == self._schedule.total_steps or await find_mailbox().stopping.remote():
            # here, as Trinity ends the runners as soon as there are no more tasks
            await find_mailbox().end.remote(TEARDOWN_SECONDS)
            raise StopAsyncIteration
        tasks = self._schedule.tasks(self._step)
        self._step += 1
        self._read_any = True
        post(ExploreStarted(self._step, len(tasks), len(tasks) * (self._repeat or 1)))
        return [self._for_trinity(task, number) for number, task in enumerate(tasks)]

    def _due(self) -> list[Evaluation]:
        total = self._schedule.total_steps
        if 0 < self._step < total and not self._read_any:
            return []  # a run that is resumed at this step has evaluated it before it was stopped
        return evaluations_left(self._parts.config.evaluation, self._evaluations, total, self._step, ())

    def _for_trinity(self, task: Task, number: int) -> TrinityTask:
        return TrinityTask(
            workflow=AstuneWorkflow,
            repeat_times=self._repeat,
            rollout_args=self._rollout,
            workflow_args=self._arguments,
            raw_task=dict(vars(task)),
            index={"step": self._step, "number": number},
        )

    def state_dict(self) -> dict[str, int]:
        return {"current_index": self._step * self._per_step}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self._step = state_dict["current_index"] // self._per_step


async def fetch_weights() -> None:
    """Ask for the saved weights again where a resumed run has the untrained ones.

    Trinity 0.6.0 starts explorer and trainer of a resumed run at once, and an explorer that asks for weights before the
    trainer has handed out the saved ones goes on with the untrained model. Where weights come over NCCL both sides have
    already met.
    """
    _, explorer = await find_mailbox().engine.remote()
    actor = ray.get_actor(f"{explorer}_rollout_model_0_0")
    if await actor.get_model_version.remote() <= 0:
        await ray.get_actor(explorer).sync_weight.remote()
