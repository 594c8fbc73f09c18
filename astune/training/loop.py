"""The training loop of every engine: roll out, judge, learn, publish, again."""

from __future__ import annotations

import time
from collections.abc import Sequence

from astune.algorithm import check_step, observe, split_samples, to_samples, without_skipped
from astune.errors import TrainingError
from astune.rollout.metrics import rollout_metrics
from astune.training.checkpoints import save_if_due
from astune.training.evaluation import evaluate
from astune.training.rollout_setup import sampling_for, weighting_for
from astune.training.run import Run, record, roll_out
from astune.training.schedule import learning_rate
from astune.types import Sample, Update


async def train(run: Run) -> None:
    """Train from `run.step` to the last step, with evaluations and checkpoints on the way. A resumed run first does
    what is left of the evaluation at its step."""
    while True:
        await evaluate(run)
        if run.step >= run.total_steps:
            return
        await train_step(run)
        save_if_due(run)


async def train_step(run: Run) -> None:
    """Take one step of the straight line: tasks -> groups -> samples -> updates -> new policy version. Episodes are
    written before anything is learned from them, and the step counts once its figures are written too."""
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
    sampled_with = run.learner.policy_version
    learned, skipped = await learn(run, samples)
    version = await run.learner.publish()
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
    observe(run.advantage, groups)
    run.changes = run.learner.changes
    run.evaluated.clear()
    run.progress.step_done(run.step, metrics)
    run.learning.step_done(metrics)


async def learn(run: Run, samples: Sequence[Sample]) -> tuple[dict[str, float], list[Sample]]:
    """Take the updates of a step. Returns figures, which are means over the updates that were taken, and the samples
    of those that were skipped. A step without signal has nothing to learn from and no figures."""
    trainer = run.config.trainer
    parts = split_samples(samples, trainer.updates_per_step, run.config.algorithm.loss_aggregation)
    updates = [await update(run, part) for part in parts]
    taken = [each.metrics for each in updates if not each.skipped]
    figures = {name: sum(metrics[name] for metrics in taken) / len(taken) for name in taken[0]} if taken else {}
    if updates:
        figures["updates/skipped"] = float(len(updates) - len(taken))
    lost = [sample for part, each in zip(parts, updates, strict=True) if each.skipped for sample in part]
    return figures, lost


async def update(run: Run, samples: Sequence[Sample]) -> Update:
    """Take one update at the learning rate that is its turn. Raises TrainingError after
    `astune.trainer.max_skipped_updates` in a row that were skipped."""
    trainer = run.config.trainer
    total = run.total_steps * trainer.updates_per_step
    done = await run.learner.update(samples, learning_rate(trainer, run.learner.updates, total))
    run.skipped_in_a_row = run.skipped_in_a_row + 1 if done.skipped else 0
    if run.skipped_in_a_row > trainer.max_skipped_updates:
        raise TrainingError(
            f"{run.skipped_in_a_row} updates in a row had a loss or gradient that is not finite "
            "(astune.trainer.max_skipped_updates); a lower astune.trainer.learning_rate may help"
        )
    return done
