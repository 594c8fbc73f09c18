"""Write the run folder and the progress display from the events of a Trinity run, as `local` writes them."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from astune.backbone.trinity.shared.events import (
    EpisodeDone,
    EvaluationDone,
    EvaluationStarted,
    Event,
    Explored,
    ExploreStarted,
    Logged,
    Warned,
)
from astune.errors import ConfigError, TrainingError
from astune.monitor.episodes import EpisodeLog
from astune.monitor.metrics import MetricsLog
from astune.monitor.progress import Learning, Progress
from astune.monitor.run_dir import RunDir

CHECKPOINT_FILE = "trinity.json"
"""In a checkpoint of the run folder: where Trinity keeps the weights and how far exploring was."""

NAMES = {
    "actor/pg_loss": "loss",
    "actor/sft_loss": "loss",
    "actor/dpo_loss": "loss",
    "actor/dpo_accuracy": "preference/accuracy",
    "actor/grad_norm": "grad_norm",
    "grad_norm": "grad_norm",
    "skipped": "updates/skipped",
    "astune/stale_batches": "batches/stale",
    "actor/pg_clipfrac": "clip_fraction",
    "actor/ppo_kl": "kl/sampler",
    "actor/lr": "learning_rate",
    "sample/trained_tokens": "tokens/trained",
    "time/train_step": "time/train",
    "time/sync_weight": "time/sync",
}
"""Figures of Trinity's trainer that have a name of ours; all others are logged under `trinity/`."""


@dataclass
class Recorder:
    """Takes events. `step` counts the train steps done, `batch` is the explored batch that was trained last: with
    batches that were dropped as too old the two differ."""

    run_dir: RunDir
    metrics: MetricsLog
    episodes: EpisodeLog
    progress: Progress
    learning: Learning
    trainer: str
    keep_checkpoints: int | None
    """None where Trinity deletes none, as with the tinker engine."""
    job_dir: Path
    step: int = 0
    batch: int = 0
    stopped: TrainingError | None = None
    """Why the run is not to go on."""
    _began: dict[int, tuple[ExploreStarted, float]] = field(default_factory=dict)
    _explored: dict[int, tuple[Explored, float]] = field(default_factory=dict)
    _finished: dict[int, float] = field(default_factory=dict)
    """When Trinity's explorer said that a batch is done of which no rows have come."""
    _last_trained: float | None = None

    def handle(self, event: Event) -> None:
        if isinstance(event, EpisodeDone):
            self.episodes.write(event.episode, step=event.step, phase=event.phase)
            self.progress.episode_done(event.episode)
        elif isinstance(event, Warned):
            self.progress.warn(event.text)
        elif isinstance(event, ExploreStarted):
            self._began[event.step] = (event, time.monotonic())
            self._last_trained = self._last_trained or time.monotonic()
            self.progress.phase_started("rollout", event.episodes)
        elif isinstance(event, Explored):
            self._batch_done(event)
        elif isinstance(event, EvaluationStarted):
            self.progress.phase_started(f"evaluation, {event.decoding}", event.episodes)
        elif isinstance(event, EvaluationDone):
            named = {f"eval/{event.decoding}/{name}": value for name, value in event.metrics.items()}
            self.metrics.log(event.step, named)
            self.progress.evaluation_done(event.step, event.decoding, event.metrics)
        else:
            self._take_figures(event)

    def _batch_done(self, event: Explored) -> None:
        """A group that Trinity's runners lost, to a fault of the machine rather than of an episode, is missing here."""
        started, began = self._began.pop(event.step)
        self._finished.pop(event.step, None)
        self._explored[event.step] = (event, time.monotonic() - began)
        if lost := started.tasks - event.groups:
            self.progress.note(f"batch {event.step}: {lost} of {started.tasks} groups were lost; see {self.log_dir}")
        if not self._began:  # else the next batch is being played already
            self.progress.phase_started("train", 0)

    def empty_batch(self, patience: float) -> int | None:
        """The number of a batch that ended `patience` seconds ago without a single episode, if there is one. Trainer
        and explorer would then wait for each other until their timeout."""
        now = time.monotonic()
        return next((batch for batch, ended in self._finished.items() if now - ended > patience), None)

    @property
    def log_dir(self) -> Path:
        return self.job_dir / "log"

    def _take_figures(self, event: Logged) -> None:
        if "rollout/finished_task_count" in event.metrics and event.step in self._began:
            self._finished[event.step] = time.monotonic()
        if event.role == self.trainer and "astune/batch" in event.metrics:
            self._take_step(event)
        else:
            self.metrics.log(event.step, {f"trinity/{name}": value for name, value in event.metrics.items()})

    def _take_step(self, event: Logged) -> None:
        """A train step: its figures beside those of the batch it trained, in one line, as `local` logs them."""
        self.step, self.batch = event.step, int(event.metrics["astune/batch"])
        now = time.monotonic()
        explored, rollout_seconds = self._explored.pop(self.batch, (None, 0.0))
        metrics: dict[str, float] = {}
        if explored is not None:
            metrics |= {**explored.metrics, **explored.receipt.metrics(event.step - 1)}
            metrics["time/rollout"] = rollout_seconds
            metrics["throughput/tokens_per_second"] = metrics["tokens/sampled"] / max(rollout_seconds, 1e-9)
            metrics["trinity/rows"] = float(explored.rows)
        metrics |= rename_figures(event.metrics)
        if metrics.get("updates/skipped"):
            metrics |= count_as_skipped(metrics)
        metrics["policy_version"] = float(event.step)
        metrics["time/step"] = now - (self._last_trained or now)
        self._last_trained = now
        self.metrics.log(event.step, metrics)
        self.progress.step_done(event.step, metrics)
        try:
            self.learning.step_done(metrics)
        except TrainingError as error:
            self.stopped = error
        if "time/save_checkpoint" in event.metrics:
            self.checkpoint(event.step, self.batch)

    def checkpoint(self, step: int, batch: int) -> None:
        """Note in the run folder that Trinity has saved `step`, whose last explored batch was `batch`."""
        if self.run_dir.checkpoint_path(step) in self.run_dir.checkpoints():
            return
        self.episodes.sync()  # first: a checkpoint without the records of its step could not be gone on from
        with self.run_dir.save_checkpoint(step) as folder:
            place = {"trinity": str(self.job_dir / f"global_step_{step}"), "step": step, "batch": batch}
            (folder / CHECKPOINT_FILE).write_text(json.dumps(place, indent=2) + "\n")
        if self.keep_checkpoints is not None:
            self.run_dir.prune_checkpoints(self.keep_checkpoints)


def go_back(recorder: Recorder, tasks_per_step: int) -> None:
    """Set explorer, metrics and episodes back to the newest checkpoint. Trinity's explorer saves its place at every
    synchronisation, its trainer only at a checkpoint, so after a crash the explorer would leave out what is between."""
    checkpoint = recorder.run_dir.take_checkpoint(recorder.progress.note)
    try:
        place = json.loads((checkpoint / CHECKPOINT_FILE).read_text())
        recorder.step, recorder.batch = int(place["step"]), int(place["batch"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"astune.resume: {checkpoint / CHECKPOINT_FILE} does not say where Trinity's checkpoint is "
            f"({type(error).__name__}: {error}): it is damaged, or the run was another backbone's"
        ) from error
    saved = Path(place["trinity"])
    if not saved.is_dir():
        raise ConfigError(f"astune.resume: {checkpoint} stands for {saved}, which is gone; start without --resume")
    # A trainer that fails within a step saves the weights of the step before under the number of this one.
    (recorder.job_dir / "latest_checkpointed_iteration.txt").write_text(str(recorder.step))
    state = {"latest_iteration": recorder.batch, "taskset_states": [{"current_index": recorder.batch * tasks_per_step}]}
    (recorder.job_dir / "explorer_meta.json").write_text(json.dumps(state, indent=2))
    recorder.metrics.truncate_after(recorder.step)
    recorder.episodes.truncate_after(recorder.batch)
    recorder.progress.note(f"going on from step {recorder.step} ({checkpoint})")


def rename_figures(metrics: Mapping[str, float]) -> dict[str, float]:
    """Trinity's figures under our names where they have one.

    >>> rename_figures({"actor/pg_loss": 0.5, "sample/task_count": 4.0, "astune/batch": 1.0})
    {'loss': 0.5, 'trinity/sample/task_count': 4.0}
    """
    return {NAMES.get(name, f"trinity/{name}"): value for name, value in metrics.items() if name != "astune/batch"}


def count_as_skipped(metrics: Mapping[str, float]) -> dict[str, float]:
    """The figures of a train step whose update was thrown away: its tokens count as left out."""
    lost = metrics.get("tokens/trained", 0.0)
    none = dict.fromkeys(("tokens/trained", "tokens/trained_inexact", "tokens/loss_terms", "weight_sum"), 0.0)
    return {**none, "tokens/dropped_skipped_update": lost}
