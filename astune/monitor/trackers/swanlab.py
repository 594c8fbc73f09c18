"""SwanLab: figures by step, episodes as texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import swanlab

from astune.monitor.trackers.tracker import ShownEpisode, TrackedRun, Tracker

STATES: Mapping[str, Literal["success", "crashed", "aborted"]] = {
    "completed": "success",
    "failed": "crashed",
    "interrupted": "aborted",
}


class SwanLabTracker(Tracker):
    def start(self, run: TrackedRun) -> str:
        wanted, run_id = self.config.swanlab, run.known_id
        self._run = swanlab.init(
            project=wanted.project or run.project,
            workspace=wanted.workspace,
            mode=wanted.mode,
            name=run.name,
            id=run_id,
            resume="allow",
            log_dir=str(run.folder / "swanlog"),
            config={key: str(value) for key, value in run.keys.items()},
            settings=swanlab.Settings(interactive=False, terminal={"proxy_type": "none"}),
        )
        return run_id

    def log(self, step: int, values: Mapping[str, float], time: float) -> None:
        self._run.log(dict(values), step=step)

    def show(self, step: int, phase: str, episodes: Sequence[ShownEpisode]) -> None:
        texts = [swanlab.Text(each.as_text(), caption=each.task_id) for each in episodes]
        self._run.log({f"episodes/{phase}": texts}, step=step)

    def finish(self, status: str) -> None:
        state = STATES[status]
        self._run.finish(state=state, error="see run.log" if state == "crashed" else None)
