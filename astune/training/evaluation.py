"""Evaluation on held-out tasks: when one is due, and what it does."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Literal

from astune.algorithm import check_episode
from astune.config.schema import AstuneConfig
from astune.rollout.metrics import evaluation_metrics
from astune.training.rollout_setup import sampling_for
from astune.training.run import Run, record, roll_out
from astune.training.schedule import is_due

Decoding = Literal["sampled", "greedy"]


def evaluations_left(config: AstuneConfig, total_steps: int, step: int, evaluated: Collection[str]) -> list[Decoding]:
    """List the ways of decoding held-out tasks that are due at a step, less those that are `evaluated` already."""
    evaluation = config.evaluation
    between = evaluation.before if step == 0 else is_due(step, evaluation.every)
    due = evaluation.after if step >= total_steps else between
    return [decoding for decoding in evaluation.decoding if due and decoding not in evaluated]


async def evaluate(run: Run) -> None:
    """Play every held-out task once in each way of decoding that is left at this step."""
    left = evaluations_left(run.config, run.total_steps, run.step, run.evaluated)
    if not run.held_out or not left:
        return
    for decoding in left:
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
    await (
        run.learner.publish()
    )  # the weights are the same, but caches are emptied: training goes on as if not evaluated
