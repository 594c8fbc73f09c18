"""The local backbone: puts the parts of a run together, runs the loop, and leaves a complete run folder behind."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal

import torch

from astune.algorithm import ADVANTAGES, AdvantageFunction
from astune.backbone.local.learner import LocalLearner
from astune.backbone.local.loop import Run, evaluations_left, save, train
from astune.backbone.local.loss import LOSSES
from astune.backbone.local.setup import load_policy
from astune.config.load import LoadedConfig
from astune.config.schema import AstuneConfig
from astune.errors import ConfigError, CtrlC, RunFolderError, SetupError, TrainingError, nearest
from astune.monitor.blocking import LoopWatch
from astune.monitor.episodes import EpisodeLog
from astune.monitor.learning import Learning
from astune.monitor.metrics import MetricsLog, read_metrics
from astune.monitor.progress import Progress
from astune.monitor.receipt import Metrics
from astune.monitor.run_dir import RunDir
from astune.monitor.summary import report_of, summarize
from astune.plugins import load_plugin
from astune.support.concurrency import run_and_leave
from astune.support.signals import on_ctrl_c
from astune.training.environment_service import environment_service
from astune.training.rollout_setup import rollout_setup
from astune.training.schedule import TaskSchedule
from astune.training.tasks import read_tasks
from astune.types import RunReport, Task
from astune.workflow.lifetime import lifetime

Status = Literal["completed", "interrupted", "failed"]


class LocalBackbone:
    """Rollouts, learning and evaluation in one process with torch and transformers."""

    name: ClassVar[str] = "local"
    honours: ClassVar[frozenset[str]] = frozenset({"astune"})
    ignored_sections: ClassVar[frozenset[str]] = frozenset({"astune.debug", "trinity"})

    def run(self, loaded: LoadedConfig) -> RunReport:
        with ExitStack() as stack:
            inputs = read_inputs(loaded, stack)
            run_dir = stack.enter_context(RunDir.reopen(loaded.config)) if inputs.config.resume else None
            if run_dir is not None and (report := finished(run_dir, inputs)) is not None:
                return report
            run = assemble(loaded, inputs, run_dir, stack)
            run.progress.run_started(loaded.config, run.run_dir, run.schedule.total_steps)
            status, error = run_and_leave(_set_up(run))
            report = replace(report_of(run.run_dir, run.step, status), error=error)
            run.progress.run_finished(report)
            return report


@dataclass(frozen=True)
class Inputs:
    """What the user gave, less the model."""

    config: AstuneConfig
    advantage: AdvantageFunction
    schedule: TaskSchedule
    held_out: Sequence[Task]


def read_inputs(loaded: LoadedConfig, stack: ExitStack) -> Inputs:
    config = loaded.config.astune
    if config.algorithm.loss not in LOSSES:
        raise ConfigError(
            f"astune.algorithm.loss: there is no {config.algorithm.loss!r}.{nearest(config.algorithm.loss, LOSSES)} "
            f"There are: {', '.join(LOSSES)}"
        )
    advantage = load_plugin(config.algorithm.advantage, kind="advantage", builtin=ADVANTAGES)
    config = stack.enter_context(environment_service(config))
    tasks = read_tasks(config)
    return Inputs(config, advantage, TaskSchedule(tasks.training, config), tasks.validation)


def finished(run_dir: RunDir, inputs: Inputs) -> RunReport | None:
    """What a run came to of which nothing is left to do; None if there is."""
    step = _step_of(run_dir.latest_checkpoint())
    metrics = read_metrics(run_dir.metrics_path) if run_dir.metrics_path.exists() else []
    total = inputs.schedule.total_steps
    left = evaluations_left(inputs.config, total, step, _evaluated(metrics, step)) if inputs.held_out else []
    if step < total or left:
        return None
    with Progress(inputs.config.monitor.progress) as progress:
        progress.note(
            f"{run_dir.path} is finished: all of its {step} steps are done, so nothing is; a greater "
            "astune.trainer.total_steps goes on"
        )
    return RunReport(run_dir.path, step, "completed", summarize(metrics))


def assemble(loaded: LoadedConfig, inputs: Inputs, run_dir: RunDir | None, stack: ExitStack) -> Run:
    """The parts of a run. `run_dir` is that of a run to go on with. Everything that can be wrong in the input is found
    before the folder of a new one is made."""
    config, schedule = inputs.config, inputs.schedule
    torch.manual_seed(config.seed)
    model, sampler, chat_format = load_policy(config)
    setup = rollout_setup(config, sampler, chat_format)
    updates = schedule.total_steps * config.trainer.updates_per_step
    learner = LocalLearner(model, sampler, config.algorithm, config.trainer, updates)
    if run_dir is None:
        run_dir = stack.enter_context(RunDir.open(loaded.config, resume=False))
    else:
        run_dir.save_config(loaded.config)
    progress = stack.enter_context(Progress(config.monitor.progress))
    metrics = MetricsLog(run_dir, config.monitor.tensorboard)
    stack.callback(metrics.close)
    episodes = stack.enter_context(EpisodeLog(run_dir))
    run = Run(
        config,
        run_dir,
        metrics,
        episodes,
        progress,
        Learning(progress, config.trainer.max_unjudged_steps),
        LoopWatch(progress.warn),
        setup,
        sampler,
        learner,
        inputs.advantage,
        schedule,
        inputs.held_out,
    )
    if config.resume:
        _resume(run)
    if not inputs.held_out:
        progress.note("no validation tasks are configured, so nothing is evaluated")
    return run


def _resume(run: Run) -> None:
    """Go back to the newest checkpoint; what was logged after it is dropped and done again."""
    checkpoint = run.run_dir.take_checkpoint(run.progress.note)
    run.learner.load(checkpoint)
    run.step = _step_of(checkpoint)
    run.metrics.truncate_after(run.step)
    run.evaluated = _evaluated(read_metrics(run.run_dir.metrics_path), run.step)
    run.episodes.truncate_after(run.step, run.evaluated)
    run.progress.note(f"going on from step {run.step} ({checkpoint})")


async def _set_up(run: Run) -> tuple[Status, Exception | None]:
    """The run between `setup` and `teardown` of its workflow."""
    try:
        async with lifetime(run.setup.workflow_factory):
            return await _until_stopped(run)
    except SetupError:
        run.run_dir.discard()  # a run that never began leaves nothing behind
        raise


def _step_of(checkpoint: Path | None) -> int:
    assert checkpoint is not None, "RunDir.reopen makes sure there is one"
    return int(checkpoint.name.removeprefix("step_"))


def _evaluated(metrics: Metrics, step: int) -> set[str]:
    """How held-out tasks were decoded in the evaluations at a step that were done."""
    return {key.split("/")[1] for row in metrics if row["step"] == step for key in row if key.startswith("eval/")}


async def _until_stopped(run: Run) -> tuple[Status, Exception | None]:
    """Train to the end, to the first Ctrl-C (between two model steps), or to where training cannot go on. Whatever ends
    it, the steps that are done are saved; a second Ctrl-C ends the run at once, and a third one the process, whatever
    goes on in it."""
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(train(run))
    stopped = 0

    def stop() -> None:
        nonlocal stopped
        stopped += 1
        if stopped > 2:  # the workflow's own code caught what the second one raised, and goes on
            os._exit(130)
        if stopped == 2:
            raise CtrlC
        loop.call_soon_threadsafe(task.cancel)

    with on_ctrl_c(stop):
        status, error = await _ended(run, task)
        if not isinstance(error, RunFolderError):
            try:
                save(run)
                run.metrics.sync()
                run.episodes.sync()
            except RunFolderError as unsaved:
                status, error = "failed", unsaved
    if isinstance(error, TrainingError | RunFolderError):
        run.progress.note(f"stopped: {error}")
        error = None
    return status, error


async def _ended(run: Run, task: asyncio.Future[None]) -> tuple[Status, Exception | None]:
    try:
        await task
    except asyncio.CancelledError:
        return "interrupted", None
    except Exception as error:
        return "failed", error
    return "completed", None
