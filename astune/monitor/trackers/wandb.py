"""Weights & Biases: figures by step, episodes as tables."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import wandb

from astune.monitor.trackers.tracker import ShownEpisode, TrackedRun, Tracker

COLUMNS = ["step", "task", "reward", "passed", "stop_reason", "reason", "messages"]


class WandbTracker(Tracker):
    """Its own count of steps only rises, and a run that goes on does some again: `step` is a figure of each row, and
    the axis of all others."""

    def start(self, run: TrackedRun) -> str:
        wanted, run_id = self.config.wandb, run.known_id
        settings = wandb.Settings(console="off", silent=True, x_disable_stats=True, disable_git=True)
        mode = wanted.mode or wandb.setup().settings.mode
        if mode in ("online", "shared") and not wandb.login(prompt=False):
            raise RuntimeError("no key: `wandb login`, WANDB_API_KEY, or astune.monitor.wandb.mode: offline")
        self._run = wandb.init(
            project=wanted.project or run.project,
            entity=wanted.entity,
            group=wanted.group,
            mode=mode,
            name=run.name,
            id=run_id,
            resume="allow",
            dir=run.folder,
            config={key: _as_value(value) for key, value in run.keys.items()},
            allow_val_change=True,
            settings=settings,
        )
        self._run.define_metric("*", step_metric="step")
        return run_id

    def log(self, step: int, values: Mapping[str, float], time: float) -> None:
        self._run.log({"step": step, **values})

    def show(self, step: int, phase: str, episodes: Sequence[ShownEpisode]) -> None:
        rows = [
            [step, each.task_id, each.reward, each.passed, each.stop_reason, each.reason, json.dumps(each.messages)]
            for each in episodes
        ]
        self._run.log({"step": step, f"episodes/{phase}": wandb.Table(columns=COLUMNS, data=rows)})

    def finish(self, status: str) -> None:
        self._run.finish(exit_code=int(status == "failed"))


def _as_value(value: object) -> object:
    return value if isinstance(value, bool | int | float | str | None) else str(value)
