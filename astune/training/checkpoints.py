"""Checkpoints of a run: when one is due, what it needs to count, and how a run goes back to one."""

from __future__ import annotations

import time
from pathlib import Path

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
    run.run_dir.prune_checkpoints(run.config.trainer.keep_checkpoints)
    run.saved = time.monotonic()


def sync_logs(run: Run) -> None:
    """Wait until episodes and figures are on the disk."""
    run.episodes.sync()
    run.metrics.sync()


def go_back(run: Run) -> None:
    """Go back to the newest checkpoint; what was logged after it is dropped and done again."""
    checkpoint = run.run_dir.take_checkpoint(run.progress.note)
    run.learner.load(checkpoint)
    run.advantage.load(checkpoint)
    run.step = step_of(checkpoint)
    run.metrics.truncate_after(run.step)
    run.evaluated = evaluated_at(run.step, read_metrics(run.run_dir.metrics_path))
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
