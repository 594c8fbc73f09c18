"""Read how far a Trinity run came, and why it ended.

Trinity's loops catch every exception, write it to a log and end, and its launcher then reports success. So success is
read from the state files that Trinity keeps, and the reason from its logs, one file per actor in
`<run>/trinity/<project>/<name>/log`. A record may have many lines, each with the prefix of the first; lines of one
record are parted by CR LF, records by LF:

    ERROR 11-21 10:09:09 [trainer.py:156] Error in Trainer:␍␊
    ERROR 11-21 10:09:09 [trainer.py:156] Traceback (most recent call last):␍␊
    ...
    ERROR 11-21 10:09:09 [trainer.py:156] ␊
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

ENDS_THE_RUN = ("Error in Trainer:", "Error in Explorer:", "Error during explorer preparation:")
"""How Trinity logs an exception that ends one of its two loops; the other one goes on waiting for it."""
CONSEQUENCES = (
    "TimeoutError",
    "CancelledError",
    "ActorDiedError",
    "ActorUnavailableError",
    "RayActorError",
    "WorkerCrashedError",
    "OwnerDiedError",
)
"""Exceptions of an actor that waits for another, which has failed."""
SHUT_DOWN = "Experience pipeline is not initialized."
"""What Trinity's explorer raises in the middle of a step when it is shut down, as by its launcher once the trainer has
died."""
TRACEBACK = "Traceback (most recent call last):"
EXCEPTION = re.compile(r"^ {2}.*\n([A-Za-z_][\w.]*(?:[:(].*)?)$", re.MULTILINE)
RECORD = re.compile(r"(?P<prefix>(?P<level>[A-Z]+) (?P<time>\d\d-\d\d \d\d:\d\d:\d\d) \[[^\]]+:\d+\] )")
PARTING = re.compile(rb"(?<!\r)\n")
ACTOR_NAME = re.compile(r"^:actor_name:(.*)$", re.MULTILINE)
CRASH = re.compile(r"^(Traceback \(most recent call last\):|Fatal Python error:|\*\*\* SIG\w+ received|F\d{4} )", re.M)
LONGEST_CRASH = 8000
"""Characters of a worker's last words that are kept."""


@dataclass(frozen=True)
class StepsReached:
    """Steps that Trinity's trainer has written down, 0 where it wrote none: those trained, and that of the newest
    checkpoint. It writes where it saves, so a run may have come a little further; the tinker trainer counts a step from
    its beginning, so the one that failed is among `train_steps`."""

    train_steps: int = 0
    checkpoint_step: int = 0


@dataclass(frozen=True)
class LoggedError:
    """An exception that an actor wrote down: `message` is the line before the traceback, or the record as a whole."""

    actor: str
    file: Path
    time: datetime
    message: str
    traceback: str

    @property
    def ends_the_run(self) -> bool:
        return self.message.startswith(ENDS_THE_RUN)

    @property
    def exception(self) -> str:
        """The line below the innermost frames: `KeyError: 'loss'`."""
        named = [found.group(1) for found in EXCEPTION.finditer(self.traceback)]
        return named[-1] if named else ""

    @property
    def is_consequence(self) -> bool:
        """True if it tells of another actor, which has failed, rather than of a fault of its own."""
        name = re.split(r"[:(]", self.exception)[0].rpartition(".")[2]
        return name in CONSEQUENCES or self.exception.endswith(SHUT_DOWN)


def steps_reached(job_dir: Path) -> StepsReached:
    """Read Trinity's state files in `job_dir`; one that is absent or half written counts as 0."""

    def read(name: str, parse: Callable[[str], Any]) -> int:
        try:
            return int(parse((job_dir / name).read_text()))
        except (OSError, ValueError, KeyError, TypeError):
            return 0

    return StepsReached(
        read("trainer_meta.json", lambda text: json.loads(text)["latest_iteration"]),
        read("latest_checkpointed_iteration.txt", int),
    )


class LogWatch:
    """The errors that are written to Trinity's logs from now on: a resumed run goes on in the files it has."""

    def __init__(self, log_dir: Path) -> None:
        self._log_dir, self._since = log_dir, time.time()
        self._began = {path: path.stat().st_size for path in _logs(log_dir)}
        self._read = dict(self._began)

    def poll(self) -> list[LoggedError]:
        """Errors that came since the last call and end a loop of Trinity, the oldest first."""
        found: list[LoggedError] = []
        for path in _logs(self._log_dir):
            errors, self._read[path] = _read(path, self._read.get(path, 0))
            found += [error for error in errors if error.ends_the_run]
        return sorted(found, key=lambda error: error.time)

    def last_error(self, session_dir: Path | None = None) -> LoggedError | None:
        """The error that ended the run, or None where nobody wrote one down.

        It is the first one that ended a loop of Trinity, unless it only tells of waiting for an actor that has failed
        before: then it is the last thing that a process that died wrote to Ray's logs (`session_dir`, on this machine),
        or the newest error of any other actor.
        """
        errors = [error for path in _logs(self._log_dir) for error in _read(path, self._began.get(path, 0))[0]]
        errors.sort(key=lambda error: error.time)
        causes = [error for error in errors if not error.is_consequence]
        ended = [error for error in causes if error.ends_the_run]
        if ended:
            return ended[0]
        crashed = list(_crashes(session_dir, self._since)) if session_dir else []
        if crashed:
            return max(crashed, key=lambda error: error.time)
        if causes:
            return causes[-1]
        return errors[0] if errors else None


def _logs(log_dir: Path) -> list[Path]:
    """With `log.group_by_node` the files lie in a folder per node."""
    return sorted(log_dir.rglob("*.log"))


def _read(path: Path, start: int) -> tuple[list[LoggedError], int]:
    """The errors in complete records of `path` from byte `start` on, and where the next record begins."""
    with path.open("rb") as file:
        file.seek(start)
        written = file.read()
    *records, rest = PARTING.split(written)
    changed = datetime.fromtimestamp(path.stat().st_mtime)
    found = [_error(record.decode(errors="replace"), path, changed) for record in records]
    return [error for error in found if error is not None], start + len(written) - len(rest)


def _error(record: str, path: Path, written: datetime) -> LoggedError | None:
    """The record as an error, None where it is none or has no traceback. `written` is when the file was changed last:
    the log's times have no year."""
    head = RECORD.match(record)
    if head is None or head["level"] not in ("ERROR", "CRITICAL") or TRACEBACK not in record:
        return None
    text = "\n".join(line.removeprefix(head["prefix"]).rstrip("\r") for line in record.split("\r\n")).strip("\n")
    message, _, rest = text.partition(TRACEBACK)
    at = datetime.strptime(f"{written.year}-{head['time']}", "%Y-%m-%d %H:%M:%S")
    if at > written + timedelta(days=1):
        at = at.replace(year=written.year - 1)
    return LoggedError(path.stem, path, at, message.strip(), f"{TRACEBACK}{rest}")


def _crashes(session_dir: Path, since: float) -> Iterator[LoggedError]:
    """The last words of actors' processes: what Python or Ray wrote as the process died, which is in no other log.
    `since` leaves out the processes that wrote nothing later: earlier jobs of the same cluster."""
    for path in sorted((session_dir / "logs").glob("worker-*.err")):
        if path.stat().st_mtime < since:
            continue
        text = path.read_text(errors="replace")
        actor = ACTOR_NAME.findall(text)
        crashes = list(CRASH.finditer(text))
        if actor and crashes:
            last = text[crashes[-1].start() :][:LONGEST_CRASH].strip()
            at = datetime.fromtimestamp(path.stat().st_mtime)
            yield LoggedError(actor[-1], path, at, last.splitlines()[0], last)
