"""Trackio: figures by step, episodes as traces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import trackio

from astune.monitor.trackers.tracker import ShownEpisode, TrackedRun, Tracker


class TrackioTracker(Tracker):
    """Trackio finds a run by its name, so the name holds the id."""

    def start(self, run: TrackedRun) -> str:
        wanted = self.config.trackio
        name = run.id or f"{run.name}-{run.known_id}"
        self._run = trackio.init(
            project=wanted.project or run.project.replace("/", "-"),
            name=name,
            resume="allow",
            space_id=wanted.space_id,
            server_url=wanted.server_url,
            private=wanted.private if wanted.space_id else None,
            config={key: str(value) for key, value in run.keys.items()},
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        return name

    def log(self, step: int, values: Mapping[str, float], time: float) -> None:
        self._run.log(dict(values), step=step)

    def show(self, step: int, phase: str, episodes: Sequence[ShownEpisode]) -> None:
        traces = []
        for each in episodes:
            about = {"task": each.task_id, "reward": each.reward, "passed": each.passed, "reason": each.reason}
            about["status"] = each.stop_reason
            traces.append(trackio.Trace(messages=[dict(message) for message in each.messages], metadata=about))
        self._run.log({f"episodes/{phase}": traces}, step=step)

    def finish(self, status: str) -> None:
        self._run.finish()
