"""Checkpoints of a run: when one is due, what it needs to count, and how a run goes back to one."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from astune.config.evaluation import aim_of, split_figure
from astune.errors import TrainingError, nearest
from astune.monitor.checkpoint_names import best_so_far, better
from astune.monitor.metrics import read_metrics
from astune.monitor.receipt import Metrics
from astune.monitor.summary import decodings
from astune.training.held_out import EXAMPLES
from astune.training.run import TrainingRun
from astune.training.schedule import is_due


def save_if_due(run: TrainingRun) -> None:
    """Save after the last step, every `astune.trainer.save_every` steps, and after `save_minutes`."""
    trainer = run.config.trainer
    late = trainer.save_minutes > 0 and time.monotonic() - run.saved >= 60 * trainer.save_minutes
    if late or run.step == run.total_steps or is_due(run.step, trainer.save_every):
        save(run)


def save(run: TrainingRun) -> None:
    """Write a checkpoint of the current step, unless there is one. There is none of step 0, nor of weights that were
    changed in a step that was broken off. Raises RunFolderError where the disk does not take it."""
    latest = run.run_dir.latest_checkpoint()
    changed = any(pupil.learner.changes != pupil.changes for pupil in run.pupils.values())
    if run.step == 0 or changed or latest == run.run_dir.checkpoint_path(run.step):
        return
    sync_logs(run)  # first: a checkpoint without the records of its step could not be gone on from
    with run.run_dir.save_checkpoint(run.step) as folder:
        for part in run.parts:
            part.save(folder)
        run.schedule.save(folder, run.step)
    prune(run)
    run.saved = time.monotonic()


def prune(run: TrainingRun) -> None:
    """Delete the checkpoints that are neither new nor the best, nor what a stage began with."""
    best = [each.step for each in run.best.values()]
    ends = [] if run.stage is None else run.stage.ends
    run.run_dir.prune_checkpoints(run.config.trainer.keep_checkpoints, [*best, *ends])


def keep_best(run: TrainingRun, figures: Mapping[str, float]) -> None:
    """Save the current step if it is the best by a figure of `run.keep_best`, and let go of the one that was. `figures`
    are those of the evaluations that were just played. Raises TrainingError where the first of them that judged an
    attempt has no such figure."""
    best = dict(run.best)
    for name, (*_, named) in run.keep_best.items():
        if named is None:
            continue
        figure = aim_of(named).figure
        if figure in figures:
            run.known.add(figure)
        elif f"{split_figure(figure)[0]}/tasks" in figures:
            _tell_of_no_figure(run, name, figure, figures)
        if (now := better(named, best.get(name), run.step, figures.get(figure))) is not None:
            best[name] = now
    if best != run.best:
        save(run)
        sync_logs(run)  # the figure too must be there before the former best is deleted
        run.best = best
        prune(run)


def _tell_of_no_figure(run: TrainingRun, model: str, figure: str, figures: Mapping[str, float]) -> None:
    """A judge may know no success, and a tool may not be called: then no checkpoint is kept yet. Any other figure that
    no judged attempt has will never be there."""
    evaluation, name = split_figure(figure)
    known = [key for key in figures if key.startswith(f"{evaluation}/") and f"{key}_tasks" in figures]
    listed = f"{nearest(figure, known)} It has: {', '.join(known) or 'nothing, as no attempt was judged'}"
    key = f"astune.models.{model}.trainer.keep_best" if model else "astune.trainer.keep_best"
    what = f"{key}: the evaluation at step {run.step} has no {figure}."
    may_come = name.startswith(("success", "pass_at_", "tools/calls/", "tools/errors/"))
    if known and figure not in run.known and not may_come:
        raise TrainingError(what + listed)
    run.progress.warn(what + listed)


def sync_logs(run: TrainingRun) -> None:
    """Wait until episodes and figures are on the disk."""
    run.episodes.sync()
    run.metrics.sync()


def go_back(run: TrainingRun) -> None:
    """Go back to the newest checkpoint; what was logged after it is dropped and done again."""
    checkpoint = run.run_dir.take_checkpoint(run.progress.note)
    run.step = step_of(checkpoint)
    if run.step > run.schedule.first:  # else the model was loaded from it, and what is beside it is another stage's
        for part in run.parts:
            part.load(checkpoint)
        run.schedule.load(checkpoint)
    run.metrics.truncate_after(run.step)
    logged = read_metrics(run.run_dir.metrics_path)
    run.evaluated = find_evaluated(run.step, logged)
    found = {name: best_so_far(logged, figures) for name, figures in run.keep_best.items()}
    run.best = {name: best for name, best in found.items() if best is not None}
    named = {aim_of(figure).figure for *_, figure in run.keep_best.values() if figure is not None}
    run.known = {figure for figure in named if any(figure in row for row in logged)}
    prune(run)  # a run that was killed between a save and the deletion of what is old has one more
    run.episodes.truncate_after(run.step, run.evaluated)
    run.progress.note(f"going on from step {run.step} ({checkpoint})")


def step_of(checkpoint: Path | None) -> int:
    """The number of the step that a checkpoint is of."""
    assert checkpoint is not None, "RunDir.reopen makes sure there is one"
    return int(checkpoint.name.removeprefix("step_"))


def find_evaluated(step: int, metrics: Metrics) -> set[str]:
    """Find in the metrics the evaluations that were written of a step, as "greedy", "hard/greedy" or "examples"."""
    rows = [row for row in metrics if row["step"] == step]
    examples = {EXAMPLES for row in rows for key in row if key.startswith(f"held_out/{EXAMPLES}/")}
    return {*decodings(rows), *examples}
