"""The training loop of every engine: play tasks or take examples, learn, publish, again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from astune.algorithm import (
    NO_TEACHER,
    SKIPPED_UPDATE,
    Receipt,
    check_step,
    observe,
    split_samples,
    to_samples,
    without_lost,
)
from astune.algorithm.batch_rules import leave_out_all
from astune.algorithm.receipt import NOT_ITS_TURN
from astune.config.rules.models import whose_turn
from astune.errors import TrainingError
from astune.examples.samples import figures
from astune.rollout.metrics import rollout_metrics
from astune.rollout.own_turns import list_own
from astune.training.checkpoints import keep_best, save_if_due
from astune.training.evaluation import evaluate
from astune.training.rollout_setup import weighting_for
from astune.training.run import (
    Pupil,
    TrainingRun,
    check_patterns,
    figures_of_receipts,
    finish_past,
    name_figures,
    play_groups,
    publish_all,
    receipt_of_untrained,
    record,
    warn_of_idle_models,
)
from astune.training.schedule import ExampleSchedule, TaskSchedule, learning_rate
from astune.types import Group, Sample, Update


async def train(run: TrainingRun) -> None:
    """Train from `run.step` to the last step, with evaluations and checkpoints on the way. A resumed run first does
    what is left of the evaluation at its step."""
    await publish_all(run.pupils)  # what the learners were given or have loaded, the policy may not have yet
    async with run.ahead or nullcontext():
        while True:
            keep_best(run, await evaluate(run))
            if run.step >= run.total_steps:
                warn_of_idle_models(run, "in the whole run")
                return
            await asyncio.sleep(0)  # a run that was told to stop does so here, though a step may wait for nothing
            await train_step(run)
            save_if_due(run)


Lost: TypeAlias = Mapping[str, list[Sample]]
"""Samples that no update learned from, by the reason."""


@dataclass(frozen=True)
class Lesson:
    """What a model learns from in a step; `groups` as they are compared."""

    groups: list[Group]
    samples: list[Sample]


@dataclass(frozen=True)
class Lessons:
    """What the models of a run learn from in a step, by their names. `account` gives the figures of what was trained,
    once it is known which samples of each were lost and why; `metrics` are those of how they came to be. `groups` were
    played for it."""

    of: dict[str, Lesson]
    metrics: dict[str, float]
    account: Callable[[Mapping[str, Lost]], dict[str, float]]
    groups: Sequence[Group] = ()


async def train_step(run: TrainingRun) -> None:
    """Take one step of the straight line: a lesson for each model -> updates -> new policy versions. The step counts
    once its figures are written."""
    started = time.perf_counter()
    lessons = await play(run) if isinstance(run.schedule, TaskSchedule) else take_examples(run, run.schedule)
    if run.store is not None:
        run.store.write_samples(run.step + 1, [sample for each in lessons.of.values() for sample in each.samples])
    learned: dict[str, float] = {}
    lost: dict[str, Lost] = {}
    for name, pupil in run.pupils.items():
        told, lost[name] = await learn(pupil, lessons.of[name].samples)
        learned |= name_figures(name, told)
    async with nullcontext() if run.ahead is None else run.ahead.between_answers():
        versions = await publish_all(run.pupils)
    finished = time.perf_counter()

    metrics = lessons.metrics | lessons.account(lost) | learned | versions | finish_past(run, lessons.groups)
    if run.stage is not None:
        metrics["stage"] = float(run.stage.number)
    metrics["time/train"] = finished - started - metrics["time/rollout"]
    metrics["time/step"] = finished - started
    if run.ahead is not None:  # rollouts do not wait for training: their tokens are those of the whole step
        metrics["throughput/tokens_per_second"] = metrics["tokens/sampled"] / metrics["time/step"]
    metrics |= run.schedule.observe(run.step, lessons.groups)
    run.metrics.log(run.step + 1, metrics)
    run.step += 1
    for name, pupil in run.pupils.items():
        observe(pupil.advantage, lessons.of[name].groups)
        pupil.changes = pupil.learner.changes
    run.evaluated.clear()
    run.progress.step_done(run.step, metrics)
    run.learning.step_done(metrics)


async def play(run: TrainingRun) -> Lessons:
    """Learn from rewards: tasks -> groups -> samples of each model. Episodes are written before anything is learned
    from them."""
    assert run.setup is not None, "only a run with tasks plays them"
    started = time.perf_counter()
    groups, played = await (play_groups(run, run.step) if run.ahead is None else run.ahead.groups())
    seconds = time.perf_counter() - started

    run.progress.phase_started("train", 0)
    run.heard |= {(turn.agent, turn.model) for group in groups for each in group.episodes for turn in each.turns}
    if run.step == run.schedule.first:
        warn_of_idle_models(run, "in the first step")
    if run.step == 0:  # agents of other tasks may come later, so one that goes on does not ask again
        check_patterns(run)
    metrics = rollout_metrics(groups) | played
    lessons: dict[str, Lesson] = {}
    accounts: dict[str, Callable[[Lost], Receipt]] = {}
    learning = whose_turn(run.config, run.step)
    for name, pupil in run.pupils.items():
        own = list_own(groups, name)
        if name in learning:
            ruled = pupil.method.choose(pupil.apply_rules(own, run.setup))
        else:
            ruled = leave_out_all(own, NOT_ITS_TURN)
        samples, receipt = to_samples(ruled.groups, pupil.advantage, weighting_for(pupil.config), ruled.left_out)
        if run.config.monitor.check_invariants:
            check_step(own, samples, receipt)
        metrics |= name_figures(name, ruled.metrics)
        lessons[name], accounts[name] = Lesson(ruled.groups, samples), partial(without_lost, receipt, own)
    record(run, groups, "train", run.step + 1)
    metrics["time/rollout"] = seconds
    metrics["throughput/tokens_per_second"] = metrics["tokens/sampled"] / seconds
    versions = {name: pupil.learner.policy_version for name, pupil in run.pupils.items()}
    untrained = receipt_of_untrained(groups, [name for name, model in run.config.models.items() if not model.learns])

    def account(lost: Mapping[str, Lost]) -> dict[str, float]:
        receipts = {name: of(lost[name]) for name, of in accounts.items()}
        return figures_of_receipts(receipts, versions, untrained)

    return Lessons(lessons, metrics, account, groups)


def take_examples(run: TrainingRun, schedule: ExampleSchedule) -> Lessons:
    """Learn from examples that are there: nothing is played."""
    run.progress.phase_started("train", 0)
    samples, pupil = schedule.samples(run.step), run.only
    weighted = not pupil.method.compares
    return Lessons(
        {pupil.name: Lesson([], samples)},
        {"time/rollout": 0.0},
        lambda lost: figures(samples, lost[pupil.name][SKIPPED_UPDATE], weighted=weighted),
    )


async def learn(pupil: Pupil, samples: Sequence[Sample]) -> tuple[dict[str, float], Lost]:
    """Take the updates of a model in a step. Returns figures, which are means over the updates that were taken, and the
    samples that were lost: those of updates that were skipped, and those that updates left out. A step without signal
    has nothing to learn from and no figures."""
    config = pupil.config
    parts = split_samples(samples, config.trainer.updates_per_step, config.algorithm.loss_aggregation)
    updates = [await update(pupil, part) for part in parts]
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


async def update(pupil: Pupil, samples: Sequence[Sample]) -> Update:
    """Take one update at the learning rate that is its turn. Raises TrainingError after
    `astune.trainer.max_skipped_updates` in a row that were skipped."""
    trainer, learner = pupil.config.trainer, pupil.learner
    total = pupil.steps * trainer.updates_per_step
    samples, told = await pupil.method.before_update(learner, samples)
    done = await learner.update(samples, learning_rate(trainer, learner.updates, total))
    done = replace(done, metrics={**done.metrics, **told})
    pupil.skipped_in_a_row = pupil.skipped_in_a_row + 1 if done.skipped else 0
    if pupil.skipped_in_a_row > trainer.max_skipped_updates:
        raise TrainingError(
            f"{pupil.skipped_in_a_row} updates in a row had a loss or gradient that is not finite "
            "(astune.trainer.max_skipped_updates); a lower astune.trainer.learning_rate may help"
        )
    return done
