"""The local backbone: puts the parts of a run together, runs the loop, and leaves a complete run folder behind."""

from __future__ import annotations

import asyncio
import signal
from contextlib import ExitStack
from typing import ClassVar, Literal

import torch

from astune.algorithm import ADVANTAGES
from astune.backbone.local.learner import LocalLearner
from astune.backbone.local.loop import Run, save, train
from astune.backbone.local.loss import LOSSES
from astune.backbone.local.setup import load_policy
from astune.backbone.parts import environment_service, read_tasks, rollout_setup
from astune.backbone.schedule import TaskSchedule
from astune.config.load import LoadedConfig
from astune.errors import ConfigError, SetupError, TrainingError, nearest
from astune.monitor.blocking import LoopWatch
from astune.monitor.episodes import EpisodeLog
from astune.monitor.learning import Learning
from astune.monitor.metrics import MetricsLog
from astune.monitor.progress import Progress
from astune.monitor.run_dir import RunDir
from astune.monitor.summary import report_of
from astune.plugins import load_plugin
from astune.types import RunReport
from astune.workflow.lifetime import lifetime

Status = Literal["completed", "interrupted", "failed"]


class LocalBackbone:
    """Rollouts, learning and evaluation in one process with torch and transformers."""

    name: ClassVar[str] = "local"
    honours: ClassVar[frozenset[str]] = frozenset({"astune"})
    ignored_sections: ClassVar[frozenset[str]] = frozenset({"astune.debug", "trinity"})

    def run(self, loaded: LoadedConfig) -> RunReport:
        with ExitStack() as stack:
            run = assemble(loaded, stack)
            run.progress.run_started(loaded.config, run.run_dir, run.schedule.total_steps)
            status = asyncio.run(_set_up(run))
            report = report_of(run.run_dir, run.step, status)
            run.progress.run_finished(report)
            return report


def assemble(loaded: LoadedConfig, stack: ExitStack) -> Run:
    """Everything that can be wrong in the input is found before the run folder is made."""
    config = loaded.config.astune
    if config.algorithm.loss not in LOSSES:
        raise ConfigError(
            f"astune.algorithm.loss: there is no {config.algorithm.loss!r}.{nearest(config.algorithm.loss, LOSSES)} "
            f"There are: {', '.join(LOSSES)}"
        )
    advantage = load_plugin(config.algorithm.advantage, kind="advantage", builtin=ADVANTAGES)
    config = stack.enter_context(environment_service(config))
    tasks = read_tasks(config)
    schedule, held_out = TaskSchedule(tasks.training, config), tasks.validation
    torch.manual_seed(config.seed)
    model, sampler, chat_format = load_policy(config)
    setup = rollout_setup(config, sampler, chat_format)
    updates = schedule.total_steps * config.trainer.updates_per_step
    learner = LocalLearner(model, sampler, config.algorithm, config.trainer, updates)

    run_dir = RunDir.open(loaded.config, resume=config.resume)
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
        advantage,
        schedule,
        held_out,
    )
    if config.resume:
        _resume(run)
    if not held_out:
        progress.note("no validation tasks are configured, so nothing is evaluated")
    return run


def _resume(run: Run) -> None:
    """Go back to the newest checkpoint; what was logged after it is dropped and done again."""
    checkpoint = run.run_dir.latest_checkpoint()
    assert checkpoint is not None, "RunDir.open(resume=True) makes sure there is one"
    run.learner.load(checkpoint)
    run.step = int(checkpoint.name.removeprefix("step_"))
    run.metrics.truncate_after(run.step)
    run.episodes.truncate_after(run.step)
    run.progress.note(f"going on from step {run.step} ({checkpoint})")


async def _set_up(run: Run) -> Status:
    """The run between `setup` and `teardown` of its workflow."""
    try:
        async with lifetime(run.setup.workflow_factory):
            return await _until_stopped(run)
    except SetupError:
        run.run_dir.discard()  # a run that never began leaves nothing behind
        raise


async def _until_stopped(run: Run) -> Status:
    """Train to the end, to the first Ctrl-C (between two model steps), or to where training cannot go on. Whatever
    ends it, what was learned is saved."""
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(train(run))

    def stop() -> None:
        loop.remove_signal_handler(signal.SIGINT)  # a second Ctrl-C ends the process at once
        task.cancel()

    loop.add_signal_handler(signal.SIGINT, stop)
    try:
        await task
    except asyncio.CancelledError:
        return "interrupted"
    except TrainingError as error:
        run.progress.note(f"stopped: {error}")
        return "failed"
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        save(run)
    return "completed"
