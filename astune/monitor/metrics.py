"""The figures of a run: `metrics.jsonl` for programs and people, TensorBoard events for curves."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from astune.errors import MissingDependency
from astune.monitor.disk import writing
from astune.monitor.jsonl import LineFile, keep_lines, read_lines
from astune.monitor.run_dir import RunDir


class MetricsLog:
    """Appends one line per call, so that a run that is killed has lost nothing it logged.

    log = MetricsLog(run_dir, tensorboard=True)
    log.log(1, {"reward/mean": 0.25, "loss": 0.01})      # {"step": 1, "time": 17..., "reward/mean": 0.25, ...}
    log.close()
    """

    def __init__(self, run_dir: RunDir, tensorboard: bool) -> None:
        self._path = run_dir.metrics_path
        self._file = LineFile(self._path)
        self._events = _EventFile(run_dir.tensorboard_dir) if tensorboard else None

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """`step` 0 is before the first update. NaN and infinities are written as null. Raises RunFolderError where the
        disk does not take it."""
        now = time.time()
        if self._events is not None:  # first: what failed here is logged again, and a line stands once
            self._events.scalars(step, now, values)
        self._file.append({"step": step, "time": round(now, 3), **values})

    def truncate_after(self, step: int) -> None:
        """Forgets what was logged after `step`: a run resumed from that checkpoint logs those steps again."""
        self._file.close()
        keep_lines(self._path, lambda row: bool(row["step"] <= step))
        self._file = LineFile(self._path)
        if self._events is not None:
            self._events.restart(step + 1)

    def sync(self) -> None:
        """Waits until all that was logged is on the disk."""
        self._file.sync()

    def close(self) -> None:
        self._file.close()
        if self._events is not None:
            self._events.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The logged lines in order: `step`, `time`, and the figures (None where one was NaN or infinite). Raises
    RunFolderError that names a broken line."""
    return list(read_lines(path))


class _EventFile:
    """One TensorBoard event file, written with TensorBoard's record format only: neither torch nor tensorflow loads."""

    def __init__(self, folder: Path) -> None:
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2  # type: ignore[import-untyped]
            from tensorboard.summary.writer.record_writer import RecordWriter  # type: ignore[import-untyped]
        except ImportError as error:
            raise MissingDependency(
                "astune.monitor.tensorboard needs the package tensorboard: pip install tensorboard, "
                "or set astune.monitor.tensorboard=false"
            ) from error
        name = f"events.out.tfevents.{time.time_ns() // 1000}.{socket.gethostname()}.{os.getpid()}"
        self._event_pb2, self._summary_pb2 = event_pb2, summary_pb2
        self._path = folder / name
        with writing(self._path):
            folder.mkdir(parents=True, exist_ok=True)
            self._writer = RecordWriter(self._path.open("xb", buffering=0))
        self._write(file_version="brain.Event:2")

    def scalars(self, step: int, now: float, values: Mapping[str, float]) -> None:
        value_of = self._summary_pb2.Summary.Value
        entries = [value_of(tag=_encodable(tag), simple_value=value) for tag, value in values.items()]
        self._write(now, step=step, summary=self._summary_pb2.Summary(value=entries))

    def restart(self, step: int) -> None:
        """Tells TensorBoard to forget points from `step` on in earlier event files of the folder."""
        log = self._event_pb2.SessionLog
        self._write(step=step, session_log=log(status=log.START))

    def close(self) -> None:
        self._writer.close()

    def _write(self, now: float | None = None, **fields: Any) -> None:
        event = self._event_pb2.Event(wall_time=time.time() if now is None else now, **fields)
        with writing(self._path):
            self._writer.write(event.SerializeToString())


def _encodable(tag: str) -> str:
    """A lone surrogate, as names of metrics and agents may have one, is written as its escape."""
    return tag.encode("utf-8", errors="backslashreplace").decode("utf-8")
