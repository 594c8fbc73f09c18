"""Evaluation on held-out tasks: when one is due, and what it does."""

from __future__ import annotations

import math
import time

from astune.algorithm import check_episode
from astune.examples.samples import token_weights_of
from astune.rollout.metrics import evaluation_metrics
from astune.training.held_out import EXAMPLES, Evaluation, are_examples_left, evaluations_left
from astune.training.rollout_setup import sampling_for
from astune.training.run import TrainingRun, publish_all, record, roll_out


async def evaluate(run: TrainingRun) -> dict[str, float]:
    """Play the evaluations that are left at this step, and tell the loss of held-out examples. Returns the figures."""
    steps, done = run.schedule.steps, run.step - run.schedule.first
    left = evaluations_left(run.config.evaluation, run.evaluations, steps, done, run.evaluated)
    figures = await _evaluate_examples(run)
    for evaluation in left:
        figures |= await _play(run, evaluation)
        if run.ahead is None:  # the weights are the same, but caches are emptied: what comes is as if not evaluated
            await publish_all(run.pupils)
    return figures


async def _play(run: TrainingRun, evaluation: Evaluation) -> dict[str, float]:
    started = time.perf_counter()
    phase = f"eval/{evaluation.name}"
    sampling = sampling_for(run.config, evaluation.decoding)
    shown = f"evaluation, {evaluation.name}"
    groups = await roll_out(run, evaluation.tasks, evaluation.attempts, sampling, shown, f"{phase}/{run.step}")
    if run.config.monitor.check_invariants:
        for group in groups:
            for episode in group.episodes:
                check_episode(episode)
    metrics = evaluation_metrics(groups, time.perf_counter() - started)
    record(run, groups, phase, run.step)
    figures = {f"{phase}/{name}": value for name, value in metrics.items()}
    run.metrics.log(run.step, figures)
    run.evaluated.add(evaluation.name)
    run.progress.evaluation_done(run.step, evaluation.name, metrics)
    return figures


async def _evaluate_examples(run: TrainingRun) -> dict[str, float]:
    """The loss of the held-out examples, as in training: a mean of negative log-probabilities."""
    done = run.step - run.schedule.first
    due = are_examples_left(run.config.evaluation, run.schedule.steps, done, run.evaluated)
    if not run.held_out_examples or not due:
        return {}
    logprobs = await run.only.learner.logprobs(run.held_out_examples)
    loss = -math.fsum(
        weight * logprob
        for sample, row in zip(run.held_out_examples, logprobs, strict=True)
        for weight, logprob in zip(token_weights_of(sample), row, strict=True)
    )
    metrics = {"loss": loss, "tokens": float(sum(sample.trained_tokens for sample in run.held_out_examples))}
    figures = {f"held_out/{EXAMPLES}/{name}": value for name, value in metrics.items()}
    run.metrics.log(run.step, figures)
    run.evaluated.add(EXAMPLES)
    run.progress.note(f"held-out examples at step {run.step}: loss {loss:.4f}")
    return figures
