"""The training loop of the local backbone: roll out, judge, learn, publish, again."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal

from astune.algorithm import AdvantageFunction, check_episode, check_step, split_samples, to_samples, without_skipped
from astune.backbone.local.learner import LocalLearner
from astune.backbone.local.model import DISK_ERRORS
from astune.backbone.local.sampler import Sampler
from astune.config.schema import AstuneConfig
from astune.monitor.blocking import LoopWatch
from astune.monitor.episodes import EpisodeLog
from astune.monitor.learning import Learning
from astune.monitor.metrics import MetricsLog
from astune.monitor.progress import Progress
from astune.monitor.run_dir import RunDir
from astune.rollout.group import run_groups
from astune.rollout.metrics import evaluation_metrics, rollout_metrics
from astune.rollout.setup import RolloutSetup
from astune.training.schedule import TaskSchedule
from astune.training.settings import sampling_for, weighting_for
from astune.types import Group, Sample, Sampling, Task

Decoding = Literal["sampled", "greedy"]


@dataclass
class Run:
    """Everything a run holds. `step` counts the steps done: a step is done when its episodes and figures are written.

    `changes` is what `learner.changes` was then: as long as it still is, the weights are those of `step`. `evaluated`
    are the decodings whose evaluation at `step` is written. `saved` is the time of the last checkpoint.
    """

    config: AstuneConfig
    run_dir: RunDir
    metrics: MetricsLog
    episodes: EpisodeLog
    progress: Progress
    learning: Learning
    watch: LoopWatch
    setup: RolloutSetup
    sampler: Sampler
    learner: LocalLearner
    advantage: AdvantageFunction
    schedule: TaskSchedule
    held_out: Sequence[Task]
    step: int = 0
    changes: int = 0
    evaluated: set[str] = field(default_factory=set)
    saved: float = field(default_factory=time.monotonic)


async def train(run: Run) -> None:
    """From `run.step` to the last step, with evaluations and checkpoints on the way. A resumed run first does what is
    left of the evaluation at its step."""
    while True:
        await evaluate(run, evaluations_left(run.config, run.schedule.total_steps, run.step, run.evaluated))
        if run.step >= run.schedule.total_steps:
            return
        await train_step(run)
        if _is_to_be_saved(run):
            save(run)


def evaluations_left(config: AstuneConfig, total_steps: int, step: int, evaluated: Collection[str]) -> list[Decoding]:
    """How held-out tasks are still to be decoded at a step, of which `evaluated` are done."""
    evaluation = config.evaluation
    between = evaluation.before if step == 0 else _due(step, evaluation.every)
    due = evaluation.after if step >= total_steps else between
    return [decoding for decoding in evaluation.decoding if due and decoding not in evaluated]


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def _is_to_be_saved(run: Run) -> bool:
    trainer = run.config.trainer
    late = trainer.save_minutes > 0 and time.monotonic() - run.saved >= 60 * trainer.save_minutes
    return late or run.step == run.schedule.total_steps or _due(run.step, trainer.save_every)


async def train_step(run: Run) -> None:
    """One step of the straight line: tasks -> groups -> samples -> update -> new policy version. Episodes are written
    before anything is learned from them, and the step counts once its figures are written too."""
    started = time.perf_counter()
    tasks = run.schedule.tasks(run.step)
    sampling = sampling_for(run.config, "sampled")
    groups = await roll_out(run, tasks, run.config.rollout.num_repeat, sampling, "rollout", f"train/{run.step + 1}")
    rolled_out = time.perf_counter()

    run.progress.phase_started("train", 0)
    samples, receipt = to_samples(groups, run.advantage, weighting_for(run.config))
    if run.config.monitor.check_invariants:
        check_step(groups, samples, receipt)
    metrics = rollout_metrics(groups)
    record(run, groups, "train", run.step + 1)
    sampled_with = run.sampler.policy_version
    learned, skipped = learn(run, samples)
    version = run.learner.publish()
    finished = time.perf_counter()

    receipt = without_skipped(receipt, groups, skipped)
    metrics |= receipt.metrics(sampled_with) | learned
    metrics["policy_version"] = version
    metrics["time/rollout"] = rolled_out - started
    metrics["time/train"] = finished - rolled_out
    metrics["time/step"] = finished - started
    metrics["throughput/tokens_per_second"] = metrics["tokens/sampled"] / (rolled_out - started)
    run.metrics.log(run.step + 1, metrics)
    run.step += 1
    run.changes = run.learner.changes
    run.evaluated.clear()
    run.progress.step_done(run.step, metrics)
    run.learning.step_done(metrics)


async def roll_out(
    run: Run, tasks: Sequence[Task], repeat: int, sampling: Sampling, phase: str, label: str
) -> list[Group]:
    run.progress.phase_started(phase, len(tasks) * repeat)
    with run.watch:
        return await run_groups(
            tasks,
            repeat,
            run.setup,
            seed=run.config.seed,
            sampling=sampling,
            max_concurrent=run.config.rollout.max_concurrent,
            label=label,
            on_episode=run.progress.episode_done,
        )


def learn(run: Run, samples: Sequence[Sample]) -> tuple[dict[str, float], list[Sample]]:
    """The updates of a step: figures, which are means over those that were taken, and the samples of those that were
    skipped. A step without signal has nothing to learn from and no figures."""
    aggregation = run.config.algorithm.loss_aggregation
    parts = split_samples(samples, run.config.trainer.updates_per_step, aggregation)
    updates = [run.learner.update(part) for part in parts]
    skipped = [bool(update["updates/skipped"]) for update in updates]
    taken = [update for update, thrown_away in zip(updates, skipped, strict=True) if not thrown_away]
    figures = {name: sum(update[name] for update in taken) / len(taken) for name in updates[0]} if taken else {}
    if updates:
        figures["updates/skipped"] = float(sum(skipped))
    lost = [sample for part, thrown_away in zip(parts, skipped, strict=True) if thrown_away for sample in part]
    return figures, lost


async def evaluate(run: Run, decodings: Sequence[Decoding]) -> None:
    """Every held-out task once, for each way of decoding."""
    if not run.held_out or not decodings:
        return
    for decoding in decodings:
        started = time.perf_counter()
        label = f"eval/{decoding}/{run.step}"
        sampling = sampling_for(run.config, decoding)
        groups = await roll_out(run, run.held_out, 1, sampling, f"evaluation, {decoding}", label)
        episodes = [episode for group in groups for episode in group.episodes]
        if run.config.monitor.check_invariants:
            for episode in episodes:
                check_episode(episode)
        metrics = evaluation_metrics(episodes, time.perf_counter() - started)
        record(run, groups, f"eval/{decoding}", run.step)
        run.metrics.log(run.step, {f"eval/{decoding}/{name}": value for name, value in metrics.items()})
        run.evaluated.add(decoding)
        run.progress.evaluation_done(run.step, decoding, metrics)
    run.sampler.forget()  # training goes on as if nothing had been evaluated


def record(run: Run, groups: Sequence[Group], phase: str, step: int) -> None:
    for group in groups:
        for episode in group.episodes:
            run.episodes.write(episode, step=step, phase=phase)


def save(run: Run) -> None:
    """A checkpoint of the current step, unless there is one. There is none of step 0, nor of weights that were changed
    in a step that was broken off. Raises RunFolderError where the disk does not take it."""
    latest = run.run_dir.latest_checkpoint()
    if run.step == 0 or run.learner.changes != run.changes or latest == run.run_dir.checkpoint_path(run.step):
        return
    run.episodes.sync()
    run.metrics.sync()
    with run.run_dir.save_checkpoint(run.step, *DISK_ERRORS) as folder:
        run.learner.save(folder)
    run.run_dir.prune_checkpoints(run.config.trainer.keep_checkpoints)
    run.saved = time.monotonic()
