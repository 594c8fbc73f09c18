"""TensorBoard's event files, in the folder `tensorboard` of the run."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from typing import Any, ClassVar

from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary.writer.record_writer import RecordWriter

from astune.monitor.disk import writing
from astune.monitor.trackers.tracker import TrackedRun, Tracker


class TensorBoard(Tracker):
    """One event file, written with TensorBoard's record format only: neither torch nor tensorflow loads."""

    in_place: ClassVar[bool] = True

    def start(self, run: TrackedRun) -> None:
        folder = run.folder / "tensorboard"
        name = f"events.out.tfevents.{time.time_ns() // 1000}.{socket.gethostname()}.{os.getpid()}"
        self._path = folder / name
        with writing(self._path):
            folder.mkdir(parents=True, exist_ok=True)
            self._writer = RecordWriter(self._path.open("xb", buffering=0))
        self._write(file_version="brain.Event:2")

    def log(self, step: int, values: Mapping[str, float], time: float) -> None:
        value_of = summary_pb2.Summary.Value
        entries = [value_of(tag=_encodable(tag), simple_value=value) for tag, value in values.items()]
        self._write(time, step=step, summary=summary_pb2.Summary(value=entries))

    def go_back(self, step: int) -> None:
        """Tells TensorBoard to forget later points in earlier event files of the folder."""
        log = event_pb2.SessionLog
        self._write(step=step + 1, session_log=log(status=log.START))

    def finish(self, status: str) -> None:
        self._writer.close()

    def _write(self, now: float | None = None, **fields: Any) -> None:
        event = event_pb2.Event(wall_time=time.time() if now is None else now, **fields)
        with writing(self._path):
            self._writer.write(event.SerializeToString())


def _encodable(tag: str) -> str:
    """A lone surrogate, as names of metrics and agents may have one, is written as its escape."""
    return tag.encode("utf-8", errors="backslashreplace").decode("utf-8")
