"""The training loop of the local backbone: roll out, judge, learn, publish, again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from astune.algorithm import AdvantageFunction, check_episode, check_step, split_samples, to_samples, without_skipped
from astune.backbone.local.learner import LocalLearner
from astune.backbone.local.sampler import Sampler
from astune.backbone.parts import sampling_for, weighting_for
from astune.backbone.schedule import TaskSchedule
from astune.config.schema import AstuneConfig
from astune.monitor.blocking import LoopWatch
from astune.monitor.episodes import EpisodeLog
from astune.monitor.learning import Learning
from astune.monitor.metrics import MetricsLog
from astune.monitor.progress import Progress
from astune.monitor.run_dir import RunDir
from astune.rollout.engine import RolloutSetup, run_groups
from astune.rollout.metrics import evaluation_metrics, rollout_metrics
from astune.types import Group, Sample, Sampling, Task


@dataclass
class Run:
    """Everything a run holds. `step` counts the steps done."""

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


async def train(run: Run) -> None:
    """From `run.step` to the last step, with evaluations and checkpoints on the way."""
    evaluation, trainer = run.config.evaluation, run.config.trainer
    if evaluation.before and run.step == 0:
        await evaluate(run)
    while run.step < run.schedule.total_steps:
        await train_step(run)
        last = run.step == run.schedule.total_steps
        if _due(run.step, evaluation.every) and not last:
            await evaluate(run)
        if _due(run.step, trainer.save_every) or last:
            save(run)
    if evaluation.after and run.step:
        await evaluate(run)


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


async def train_step(run: Run) -> None:
    """One step of the straight line: tasks -> groups -> samples -> update -> new policy version."""
    started = time.perf_counter()
    tasks = run.schedule.tasks(run.step)
    sampling = sampling_for(run.config, "sampled")
    groups = await roll_out(run, tasks, run.config.rollout.num_repeat, sampling, "rollout", f"train/{run.step + 1}")
    rolled_out = time.perf_counter()

    run.progress.phase_started("train", 0)
    samples, receipt = to_samples(groups, run.advantage, weighting_for(run.config))
    if run.config.monitor.check_invariants:
        check_step(groups, samples, receipt)
    sampled_with = run.sampler.policy_version
    learned, skipped = learn(run, samples)
    version = run.learner.publish()
    finished = time.perf_counter()

    run.step += 1
    receipt = without_skipped(receipt, groups, skipped)
    metrics = rollout_metrics(groups) | receipt.metrics(sampled_with) | learned
    metrics["policy_version"] = version
    metrics["time/rollout"] = rolled_out - started
    metrics["time/train"] = finished - rolled_out
    metrics["time/step"] = finished - started
    metrics["throughput/tokens_per_second"] = metrics["tokens/sampled"] / (rolled_out - started)
    record(run, groups, "train")
    run.metrics.log(run.step, metrics)
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


async def evaluate(run: Run) -> None:
    """Every held-out task once, for each way of decoding."""
    if not run.held_out:
        return
    for decoding in run.config.evaluation.decoding:
        started = time.perf_counter()
        label = f"eval/{decoding}/{run.step}"
        sampling = sampling_for(run.config, decoding)
        groups = await roll_out(run, run.held_out, 1, sampling, f"evaluation, {decoding}", label)
        episodes = [episode for group in groups for episode in group.episodes]
        if run.config.monitor.check_invariants:
            for episode in episodes:
                check_episode(episode)
        metrics = evaluation_metrics(episodes, time.perf_counter() - started)
        record(run, groups, f"eval/{decoding}")
        run.metrics.log(run.step, {f"eval/{decoding}/{name}": value for name, value in metrics.items()})
        run.progress.evaluation_done(run.step, decoding, metrics)
    run.sampler.forget()  # training goes on as if nothing had been evaluated


def record(run: Run, groups: Sequence[Group], phase: str) -> None:
    for group in groups:
        for episode in group.episodes:
            run.episodes.write(episode, step=run.step, phase=phase)


def save(run: Run) -> None:
    """A checkpoint of the current step, unless there is one."""
    if run.step == 0 or (
        (latest := run.run_dir.latest_checkpoint()) and latest == run.run_dir.checkpoint_path(run.step)
    ):
        return
    with run.run_dir.save_checkpoint(run.step) as folder:
        run.learner.save(folder)
    run.run_dir.prune_checkpoints(run.config.trainer.keep_checkpoints)
