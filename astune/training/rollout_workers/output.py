"""What the user's code prints and logs where it is played comes out where the run is."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Mapping
from typing import Any

from astune.support.current_episode import EPISODE
from astune.support.run_log import EPISODE_ID, ROLE, file_logger
from astune.training.rollout_workers.messages import LogLine, Noted, Printed, Said, Send
from astune.workflow.notes import Notes

printed = file_logger("astune.printed")


class Lines(io.RawIOBase):
    """Sends what is written to it, line by line. `number` is the file descriptor that children of the process get."""

    def __init__(self, send: Send, number: int) -> None:
        self._send, self._number = send, number
        self._begun = b""

    def text(self) -> io.TextIOWrapper:
        """The file that takes the place of `sys.stdout` or `sys.stderr`."""
        return io.TextIOWrapper(io.BufferedWriter(self), "utf-8", "backslashreplace", line_buffering=True)

    def write(self, data: Any) -> int:
        *lines, self._begun = (self._begun + bytes(data)).split(b"\n")
        for line in lines:
            self._send(Printed(line.decode(errors="replace"), self._number == 2))
        return len(data)

    def end(self) -> None:
        """Send the last line, if nobody ended it."""
        if self._begun:
            self.write(b"\n")

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._number


class SendLogs(logging.Handler):
    def __init__(self, send: Send) -> None:
        super().__init__()
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        trace = logging.Formatter().formatException(record.exc_info) if record.exc_info else record.exc_text
        kept = {name: value for name, value in vars(record).items() if isinstance(value, (str, int, float))}
        this = EPISODE.get()
        kept[EPISODE_ID] = this.episode_id if this else ""
        self._send(LogLine({**kept, "msg": record.getMessage(), "exc_text": trace}))


class SentOutput:
    """This process's standard output, standard error and log records, sent."""

    def __init__(self, send: Send) -> None:
        self._lines = [Lines(send, number) for number in (1, 2)]
        sys.stdout, sys.stderr = (lines.text() for lines in self._lines)
        logging.getLogger().addHandler(SendLogs(send))

    def end(self) -> None:
        """Send the last lines, if nobody ended them."""
        for stream, lines in zip((sys.stdout, sys.stderr), self._lines, strict=True):
            stream.flush()
            lines.end()


def list_levels() -> dict[str, int]:
    """List the levels of this process's loggers, for workers; "" is the root."""
    return {"": logging.getLogger().getEffectiveLevel(), "astune": logging.getLogger("astune").level}


def set_levels(levels: Mapping[str, int]) -> None:
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


def repeat(said: Said, notes: Notes, worker: str) -> None:
    """Print or log in the run what a worker sent."""
    if isinstance(said, LogLine):
        record = logging.makeLogRecord({**said.record, ROLE: worker})
        logging.getLogger(record.name).handle(record)  # its level was asked there
    elif isinstance(said, Noted):
        notes.once(said.subject, said.text)
    else:
        print(said.line, file=sys.stderr if said.to_stderr else sys.stdout)
        printed.info("%s", said.line, extra={ROLE: worker})
