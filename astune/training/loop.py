"""The training loop of every engine: play tasks or take examples, learn, publish, again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TypeAlias

from astune.algorithm import (
    NO_TEACHER,
    SKIPPED_UPDATE,
    check_step,
    observe,
    split_samples,
    to_samples,
    without_lost,
)
from astune.errors import TrainingError
from astune.examples.samples import figures
from astune.rollout.metrics import rollout_metrics
from astune.training.checkpoints import keep_best, save_if_due
from astune.training.evaluation import evaluate
from astune.training.rollout_setup import weighting_for
from astune.training.run import TrainingRun, batch_rules_for, play_groups, record
from astune.training.schedule import ExampleSchedule, TaskSchedule, learning_rate
from astune.types import Group, Sample, Update


async def train(run: TrainingRun) -> None:
    """Train from `run.step` to the last step, with evaluations and checkpoints on the way. A resumed run first does
    what is left of the evaluation at its step."""
    await run.learner.publish()  # what the learner was given or has loaded, the policy may not have yet
    async with run.ahead or nullcontext():
        while True:
            keep_best(run, await evaluate(run))
            if run.step >= run.total_steps:
                return
            await asyncio.sleep(0)  # a run that was told to stop does so here, though a step may wait for nothing
            await train_step(run)
            save_if_due(run)


Lost: TypeAlias = Mapping[str, list[Sample]]
"""Samples that no update learned from, by the reason."""


@dataclass(frozen=True)
class Lesson:
    """What a step learns from; `groups` as they are compared. `account` gives the figures of what was trained, once it
    is known which samples were lost and why; `metrics` are those of how they came to be."""

    groups: list[Group]
    samples: list[Sample]
    metrics: dict[str, float]
    account: Callable[[Lost], dict[str, float]]


async def train_step(run: TrainingRun) -> None:
    """Take one step of the straight line: a lesson -> updates -> new policy version. The step counts once its figures
    are written."""
    started = time.perf_counter()
    lesson = await play(run) if isinstance(run.schedule, TaskSchedule) else take_examples(run, run.schedule)
    if run.store is not None:
        run.store.write_samples(run.step + 1, lesson.samples)
    learned, lost = await learn(run, lesson.samples)
    async with nullcontext() if run.ahead is None else run.ahead.between_answers():
        version = await run.learner.publish()
    finished = time.perf_counter()

    metrics = lesson.metrics | lesson.account(lost) | learned
    metrics["policy_version"] = version
    if run.stage is not None:
        metrics["stage"] = float(run.stage.number)
    metrics["time/train"] = finished - started - metrics["time/rollout"]
    metrics["time/step"] = finished - started
    if run.ahead is not None:  # rollouts do not wait for training: their tokens are those of the whole step
        metrics["throughput/tokens_per_second"] = metrics["tokens/sampled"] / metrics["time/step"]
    run.metrics.log(run.step + 1, metrics)
    run.step += 1
    observe(run.advantage, lesson.groups)
    run.changes = run.learner.changes
    run.evaluated.clear()
    run.progress.step_done(run.step, metrics)
    run.learning.step_done(metrics)


async def play(run: TrainingRun) -> Lesson:
    """Learn from rewards: tasks -> groups -> samples. Episodes are written before anything is learned from them."""
    started = time.perf_counter()
    rules = batch_rules_for(run)
    groups, played = await (play_groups(run, run.step, rules) if run.ahead is None else run.ahead.groups(rules))
    seconds = time.perf_counter() - started

    run.progress.phase_started("train", 0)
    ruled = run.method.choose(rules(groups))
    samples, receipt = to_samples(ruled.groups, run.advantage, weighting_for(run.config), ruled.left_out)
    if run.config.monitor.check_invariants:
        check_step(groups, samples, receipt)
    metrics = rollout_metrics(groups) | played | ruled.metrics
    record(run, groups, "train", run.step + 1)
    metrics["time/rollout"] = seconds
    metrics["throughput/tokens_per_second"] = metrics["tokens/sampled"] / seconds
    version = run.learner.policy_version
    return Lesson(ruled.groups, samples, metrics, lambda lost: without_lost(receipt, groups, lost).metrics(version))


def take_examples(run: TrainingRun, schedule: ExampleSchedule) -> Lesson:
    """Learn from examples that are there: nothing is played."""
    run.progress.phase_started("train", 0)
    samples = schedule.samples(run.step)
    weighted = not run.method.compares
    return Lesson(
        [], samples, {"time/rollout": 0.0}, lambda lost: figures(samples, lost[SKIPPED_UPDATE], weighted=weighted)
    )


async def learn(run: TrainingRun, samples: Sequence[Sample]) -> tuple[dict[str, float], Lost]:
    """Take the updates of a step. Returns figures, which are means over the updates that were taken, and the samples
    that were lost: those of updates that were skipped, and those that updates left out. A step without signal has
    nothing to learn from and no figures."""
    trainer = run.config.trainer
    parts = split_samples(samples, trainer.updates_per_step, run.config.algorithm.loss_aggregation)
    updates = [await update(run, part) for part in parts]
    taken = [each.metrics for each in updates if not each.skipped]
    figures = {name: sum(metrics[name] for metrics in taken) / len(taken) for name in taken[0]} if taken else {}
    if updates:
        figures["updates/skipped"] = float(len(updates) - len(taken))
        figures["updates/split_for_memory"] = float(sum(each.splits for each in updates))
    lost: dict[str, list[Sample]] = {SKIPPED_UPDATE: [], NO_TEACHER: []}
    for part, each in zip(parts, updates, strict=True):
        left_out = {sample.episode_id for sample in each.left_out}
        lost[NO_TEACHER] += [sample for sample in part if sample.episode_id in left_out]
        lost[SKIPPED_UPDATE] += [sample for sample in part if each.skipped and sample.episode_id not in left_out]
    return figures, lost


async def update(run: TrainingRun, samples: Sequence[Sample]) -> Update:
    """Take one update at the learning rate that is its turn. Raises TrainingError after
    `astune.trainer.max_skipped_updates` in a row that were skipped."""
    trainer = run.config.trainer
    total = run.schedule.steps * trainer.updates_per_step
    samples, told = await run.method.before_update(run.learner, samples)
    done = await run.learner.update(samples, learning_rate(trainer, run.learner.updates, total))
    done = replace(done, metrics={**done.metrics, **told})
    run.skipped_in_a_row = run.skipped_in_a_row + 1 if done.skipped else 0
    if run.skipped_in_a_row > trainer.max_skipped_updates:
        raise TrainingError(
            f"{run.skipped_in_a_row} updates in a row had a loss or gradient that is not finite "
            "(astune.trainer.max_skipped_updates); a lower astune.trainer.learning_rate may help"
        )
    return done
