"""Checkpoints of a run: when one is due, what it needs to count, and how a run goes back to one."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from astune.monitor.best import best_so_far, better
from astune.monitor.metrics import read_metrics
from astune.monitor.receipt import Metrics
from astune.monitor.summary import decodings
from astune.training.held_out import EXAMPLES
from astune.training.run import Run
from astune.training.schedule import is_due


def save_if_due(run: Run) -> None:
    """Save after the last step, every `astune.trainer.save_every` steps, and after `save_minutes`."""
    trainer = run.config.trainer
    late = trainer.save_minutes > 0 and time.monotonic() - run.saved >= 60 * trainer.save_minutes
    if late or run.step == run.total_steps or is_due(run.step, trainer.save_every):
        save(run)


def save(run: Run) -> None:
    """Write a checkpoint of the current step, unless there is one. There is none of step 0, nor of weights that were
    changed in a step that was broken off. Raises RunFolderError where the disk does not take it."""
    latest = run.run_dir.latest_checkpoint()
    if run.step == 0 or run.learner.changes != run.changes or latest == run.run_dir.checkpoint_path(run.step):
        return
    sync_logs(run)  # first: a checkpoint without the records of its step could not be gone on from
    with run.run_dir.save_checkpoint(run.step) as folder:
        run.learner.save(folder)
        run.advantage.save(folder)
    prune(run)
    run.saved = time.monotonic()


def prune(run: Run) -> None:
    """Delete the checkpoints that are neither new nor the best, nor what a stage began with."""
    best = [] if run.best is None else [run.best.step]
    ends = [] if run.stage is None else run.stage.ends
    run.run_dir.prune_checkpoints(run.config.trainer.keep_checkpoints, [*best, *ends])


def keep_best(run: Run, figures: Mapping[str, float]) -> None:
    """Save the current step if it is the best by `astune.trainer.keep_best`, and let go of the one that was. `figures`
    are those of the evaluations that were just played."""
    figure = run.config.trainer.keep_best
    if figure is None:
        return
    evaluation = figure.rpartition("/")[0]
    if figure not in figures and f"{evaluation}/tasks" in figures:
        run.progress.warn(
            f"astune.trainer.keep_best: the evaluation at step {run.step} has no {figure}: no attempt was judged, or "
            f"the judge does not say what succeeds ({evaluation}/reward may be there)"
        )
    best = better(figure, run.best, run.step, figures.get(figure))
    if best != run.best:
        save(run)
        sync_logs(run)  # the figure too must be there before the former best is deleted
        run.best = best
        prune(run)


def sync_logs(run: Run) -> None:
    """Wait until episodes and figures are on the disk."""
    run.episodes.sync()
    run.metrics.sync()


def go_back(run: Run) -> None:
    """Go back to the newest checkpoint; what was logged after it is dropped and done again."""
    checkpoint = run.run_dir.take_checkpoint(run.progress.note)
    run.step = step_of(checkpoint)
    if run.step > run.schedule.first:  # else the model was loaded from it, and what is beside it is another stage's
        run.learner.load(checkpoint)
        run.advantage.load(checkpoint)
    run.metrics.truncate_after(run.step)
    logged = read_metrics(run.run_dir.metrics_path)
    run.evaluated = evaluated_at(run.step, logged)
    run.best = best_so_far(logged, run.keep_best)
    prune(run)  # a run that was killed between a save and the deletion of what is old has one more
    run.episodes.truncate_after(run.step, run.evaluated)
    run.progress.note(f"going on from step {run.step} ({checkpoint})")


def step_of(checkpoint: Path | None) -> int:
    """The number of the step that a checkpoint is of."""
    assert checkpoint is not None, "RunDir.reopen makes sure there is one"
    return int(checkpoint.name.removeprefix("step_"))


def evaluated_at(step: int, metrics: Metrics) -> set[str]:
    """Find in the metrics the evaluations that were written of a step, as "greedy", "hard/greedy" or "examples"."""
    rows = [row for row in metrics if row["step"] == step]
    examples = {EXAMPLES for row in rows for key in row if key.startswith(f"held_out/{EXAMPLES}/")}
    return {*decodings(rows), *examples}
