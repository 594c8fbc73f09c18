"""Settings that are each right and together make a run that learns nothing, or loses what it learned."""

from __future__ import annotations

from collections.abc import Iterator

from astune.algorithm import ADVANTAGES
from astune.backbone.base import covers
from astune.config.evaluation import aim_of, is_success, split_figure
from astune.config.rules import plays_episodes
from astune.config.rules.method import rules_of
from astune.doctor.checked_config import CheckedConfig, Missing
from astune.doctor.findings import Finding, fail, ok, skip, warn
from astune.errors import PluginError
from astune.plugins import load_plugin

SMALL = 50_000_000
"""A model with fewer parameters takes a learning rate that would ruin a large one."""
WIDE_FOR_ROWS = 0.05
"""Upper bounds of the ratio of a whole row above this clip nothing: it is the geometric mean of its tokens' ratios."""
LONG = 200
"""Steps after which a run without checkpoints has much to lose."""


def check_training(checked: CheckedConfig) -> Iterator[Finding]:
    name = checked.config.backbone
    if covers(checked.backbone.ignored_sections, "astune.trainer"):
        yield skip(f"backbone {name!r} does not train")
        return
    found = [
        *_names(checked),
        *_kinds(checked),
        *_loss(checked),
        *_learning_rate(checked),
        *_critic(checked),
        *_length(checked),
    ]
    found += _evaluation(checked)
    yield from found
    if not found:
        trainer, rollout = checked.config.trainer, checked.config.rollout
        attempts = f" x {rollout.num_repeat} attempts" if plays_episodes(checked.config) else ""
        yield ok(
            f"{total_steps(checked)} steps of {trainer.tasks_per_step} {noun(checked)}{attempts}, learning rate "
            f"{trainer.learning_rate:g}"
        )


def noun(checked: CheckedConfig) -> str:
    """The name of what a step takes."""
    return "tasks" if plays_episodes(checked.config) else "examples"


def number(checked: CheckedConfig) -> int:
    """Count the tasks, or examples, that are trained on. Raises Missing where they could not be read."""
    return len(checked.tasks["training"]) if plays_episodes(checked.config) else checked.examples


def total_steps(checked: CheckedConfig) -> int:
    """Steps of the whole run, as far as the training tasks or the examples are known."""
    trainer = checked.config.trainer
    try:
        per_epoch = max(number(checked) // trainer.tasks_per_step, 1)
    except Missing:
        per_epoch = 1
    limits = [trainer.total_steps, None if trainer.total_epochs is None else trainer.total_epochs * per_epoch]
    return min(limit for limit in limits if limit is not None)


def _names(checked: CheckedConfig) -> Iterator[Finding]:
    algorithm = checked.config.algorithm
    try:
        load_plugin(algorithm.advantage, kind="advantage", builtin=ADVANTAGES)
    except PluginError as error:
        fix = f"one of {', '.join(ADVANTAGES)}, or a function of your own: 'my_file.py:name'"
        yield fail(str(error), where=checked.where("astune.algorithm.advantage"), fix=fix)


def _loss(checked: CheckedConfig) -> Iterator[Finding]:
    """Values that are allowed and do not do what they look like."""
    algorithm, trainer = checked.config.algorithm, checked.config.trainer
    if algorithm.loss == "gspo" and algorithm.clip_high > WIDE_FOR_ROWS:
        yield warn(
            f"the ratio of a whole row stays near 1, and a bound of 1 + {algorithm.clip_high:g} is never reached",
            where=checked.where("astune.algorithm.clip_high"),
            fix="the paper has clip_low 3e-4 and clip_high 4e-4, as has astune.algorithm.preset: gspo",
        )
    if algorithm.loss == "reinforce" and algorithm.importance == "none" and trainer.updates_per_step > 1:
        yield warn(
            f"of the {trainer.updates_per_step} updates of a step, all but the first learn from tokens of an older "
            "policy, and 'reinforce' takes no notice",
            where=checked.where("astune.algorithm.loss"),
            fix="set astune.algorithm.importance: truncate, or astune.trainer.updates_per_step: 1",
        )
    if algorithm.out_of_date_decay and trainer.updates_per_step == 1 and checked.config.backbone == "local":
        yield warn(
            "with one update per step no token is older than the policy, so nothing decays",
            where=checked.where("astune.algorithm.out_of_date_decay"),
            fix="take the key out, or set astune.trainer.updates_per_step to 2 or more",
        )


def _kinds(checked: CheckedConfig) -> Iterator[Finding]:
    """A task without the column of its kind stops the run when its turn comes, which may be late."""
    column = checked.config.algorithm.baseline_by
    try:
        lacking = [task for task in checked.tasks["training"] if column is not None and column not in task.metadata]
    except Missing:
        return
    if lacking:
        yield fail(
            f"{len(lacking):,} training tasks have no column {column!r} in their metadata, the first: "
            f"{lacking[0].task_id!r}",
            where=checked.where("astune.algorithm.baseline_by"),
            fix="a column that every task has (astune.task_reader.fields.metadata says which are kept), or leave the "
            "key out: then the type of environment is the kind",
        )


def _learning_rate(checked: CheckedConfig) -> Iterator[Finding]:
    try:
        small = checked.size.parameters < SMALL
    except Missing:
        small = False
    rate, most = checked.config.trainer.learning_rate, 1e-2 if small else 1e-4
    usual = "1e-4 to 1e-3 for a model this small" if small else "1e-6, at most 1e-5"
    where = checked.where("astune.trainer.learning_rate")
    if rate > 10 * most:
        yield fail(f"a learning rate of {rate:g} ruins the model in a few steps", where=where, fix=f"usual is {usual}")
    elif rate > most:
        yield warn(f"a learning rate of {rate:g} is very large", where=where, fix=f"usual is {usual}")
    elif rate < 1e-9:
        yield warn(f"a learning rate of {rate:g} changes nothing", where=where, fix=f"usual is {usual}")


def _critic(checked: CheckedConfig) -> Iterator[Finding]:
    algorithm, policys = checked.config.algorithm, checked.config.trainer.learning_rate
    rate = algorithm.critic.learning_rate
    if rules_of(algorithm).needs_critic and rate < policys:
        yield warn(
            f"the critic learns more slowly ({rate:g}) than the policy ({policys:g}), whose advantages it makes",
            where=checked.where("astune.algorithm.critic.learning_rate"),
            fix="usual is two to ten times the policy's learning rate",
        )


def _length(checked: CheckedConfig) -> Iterator[Finding]:
    trainer = checked.config.trainer
    try:
        tasks = number(checked) + (checked.config.task_reader.augment.target or 0)
    except Missing:
        return
    if 0 < tasks < trainer.tasks_per_step:
        yield fail(
            f"a step takes {trainer.tasks_per_step} {noun(checked)}, and there are {tasks}",
            where=checked.where("astune.trainer.tasks_per_step"),
            fix=f"set it to {tasks} or fewer",
        )
    if checked.config.algorithm.dynamic_sampling and tasks == trainer.tasks_per_step:
        yield warn(
            f"all {tasks} training tasks are in every step, so there are none to replace groups without signal by",
            where=checked.where("astune.algorithm.dynamic_sampling"),
            fix="lower astune.trainer.tasks_per_step, collect more tasks, or take the key out",
        )
    steps = total_steps(checked)
    curriculum, places = trainer.curriculum, steps * trainer.tasks_per_step
    if curriculum.enabled and curriculum.new == 1 and places <= tasks:
        yield warn(
            f"new tasks come first, and the {places} places of the run are no more than the {tasks} tasks: the "
            "curriculum never chooses",
            where=checked.where("astune.trainer.curriculum.enabled"),
            fix="astune.trainer.curriculum.new: 0.5 leaves half of each step to tasks that are known; else take it out",
        )
    by_time = trainer.save_minutes > 0 and checked.config.backbone == "local"
    if trainer.save_every == 0 and not by_time and steps > LONG:
        yield warn(
            f"{steps} steps without a checkpoint: a crash or a full disk loses all that was learned",
            where=checked.where("astune.trainer.save_every"),
            fix=f"set it to {max(steps // 20, 10)}",
        )
    if trainer.warmup_steps >= steps * trainer.updates_per_step:
        yield warn(
            f"the warm-up of {trainer.warmup_steps} updates is as long as the run: the learning rate is never reached",
            where=checked.where("astune.trainer.warmup_steps"),
            fix=f"set it to {steps // 20} or so",
        )


def _evaluation(checked: CheckedConfig) -> Iterator[Finding]:
    """The defaults evaluate where there is something to evaluate on; what the user asked for must be possible."""
    evaluation = checked.config.evaluation
    try:
        held_out = checked.tasks["validation"]
    except Missing:
        return
    asked = {"before": evaluation.before, "after": evaluation.after, "every": evaluation.every > 0}
    keys = [f"astune.evaluation.{name}" for name, wanted in asked.items() if wanted]
    keys = [key for key in keys if key in checked.loaded.set_by_user()]
    if keys and not held_out and not checked.config.evaluation.sets:
        yield warn(
            "an evaluation is asked for, and there are no held-out tasks: nothing is evaluated",
            where=checked.where(keys[0]),
            fix="name a file of tasks that are not trained on: astune.task_reader.jsonl.validation.file_path",
        )
    yield from _keep_best(checked)


def _keep_best(checked: CheckedConfig) -> Iterator[Finding]:
    """Check that the judge gives the figure by which the best checkpoint is kept."""
    named = checked.config.trainer.keep_best
    verdict = None if checked.played is None else checked.played.verdict
    if named is None or verdict is None:
        return
    evaluation, figure = split_figure(aim_of(named).figure)
    where = checked.where("astune.trainer.keep_best")
    given = [f"{evaluation}/judge/{name}" for name in verdict.metrics]
    if is_success(figure) and verdict.passed is None:
        yield warn(
            f"the best checkpoint is kept by {named}, and the judge does not say what succeeds: none is kept",
            where=where,
            fix=f"set it to {evaluation}/reward",
        )
    elif figure.startswith("judge/") and f"{evaluation}/{figure}" not in given:
        yield warn(
            f"the best checkpoint is kept by {named}, and the judge gave no such metric of the episode of the dry run",
            where=where,
            fix=f"name one that it gives: {', '.join(given) or 'it gives none'}",
        )
