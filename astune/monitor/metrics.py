"""The figures of a run: `metrics.jsonl` for programs and people, trackers for curves."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from astune.monitor.jsonl import LineFile, keep_lines, read_lines
from astune.monitor.run_dir import RunDir
from astune.monitor.trackers import NO_TRACKERS, Trackers
from astune.types import Episode


class MetricsLog:
    """Appends one line per call, so that a run that is killed has lost nothing it logged.

    log = MetricsLog(run_dir)
    log.log(1, {"reward/mean": 0.25, "loss": 0.01})      # {"step": 1, "time": 17..., "reward/mean": 0.25, ...}
    log.close()
    """

    def __init__(self, run_dir: RunDir, trackers: Trackers = NO_TRACKERS) -> None:
        self._path = run_dir.metrics_path
        self._file = LineFile(self._path)
        self._trackers = trackers

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """`step` 0 is before the first update. NaN and infinities are written as null. Raises RunFolderError where the
        disk does not take it."""
        now = time.time()
        self._file.append({"step": step, "time": round(now, 3), **values})
        self._trackers.log(step, values, now)  # last: what the disk did not take is logged again

    def show(self, step: int, phase: str, episodes: Sequence[Episode]) -> None:
        """Show trackers some of the `episodes`, which are written elsewhere."""
        self._trackers.show(step, phase, episodes)

    def truncate_after(self, step: int) -> None:
        """Forgets what was logged after `step`: a run resumed from that checkpoint logs those steps again."""
        self._file.close()
        keep_lines(self._path, lambda row: bool(row["step"] <= step))
        self._file = LineFile(self._path)
        self._trackers.go_back(step)

    def sync(self) -> None:
        """Waits until all that was logged is on the disk."""
        self._file.sync()

    def close(self, status: str = "failed") -> None:
        """Ends the run of each tracker too, as `status` says. The first call counts."""
        self._file.close()
        self._trackers.finish(status)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The logged lines in order: `step`, `time`, and the figures (None where one was NaN or infinite). Raises
    RunFolderError that names a broken line."""
    return list(read_lines(path))
