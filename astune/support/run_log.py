"""The log of a command: what modules say with `logging` is kept by loguru, in the folder that the command works in.

with command_log(None):              # the command line alone does this; without it nothing here does anything
    open_log(folder, as_json=False)  # folder/run.log, with what was logged before there was a folder

Records are taken where loggers give them to their handlers, and not by a handler of the root logger: that would make
`logging.basicConfig()` of an agent do nothing, be taken off by its `dictConfig`, and miss libraries that do not
propagate, as transformers and uvicorn. So the terminal shows what it would show without a log.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import platform
import socket
import sys
import time
import traceback
import warnings
from collections import deque
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from astune.support.current_episode import EPISODE
from astune.support.user_code import by_user, part_of_astune
from astune.support.visible import tell, visible
from astune.version import __version__

ROLE, EPISODE_ID = "astune_role", "astune_episode"
"""Attributes of records of another process: its name, as "worker-0", and the episode that the record belongs to."""
ROTATED_AT = 20_000_000
"""Characters of a file, after which it is put aside."""
KEPT = 5
"""Files of those that were put aside."""
MOST_WAITING = 1000
"""Records that are kept until there is a folder."""


def file_logger(name: str) -> logging.Logger:
    """A logger of what the terminal shows in another way: it is written into the log of a command and nowhere else."""
    logger = logging.getLogger(name)
    logger.propagate, logger.handlers = False, [logging.NullHandler()]
    return logger


class _Entry(NamedTuple):
    """One record in a file: a line, or several where the message has them or an exception follows."""

    time: datetime
    level: str
    process: str
    name: str
    place: str
    episode: str
    message: str
    exception: str

    @classmethod
    def of(cls, record: logging.LogRecord) -> _Entry:
        """With its text as it is now, as arguments may change. Raises what they raise."""
        given, this = vars(record), EPISODE.get()
        trace = "".join(traceback.format_exception(*record.exc_info)) if record.exc_info else record.exc_text or ""
        return cls(
            datetime.fromtimestamp(record.created).astimezone(),
            record.levelname,
            given.get(ROLE, ""),
            record.name,
            f"{record.funcName or record.module}:{record.lineno}",
            given.get(EPISODE_ID) or (this.episode_id if this else ""),
            record.getMessage(),
            trace.rstrip(),
        )

    def as_text(self) -> str:
        named = self.message.startswith(self.episode)  # ASTune's own warnings begin with it
        message = self.message if named else f"[{self.episode}] {self.message}"
        when = f"{self.time:%Y-%m-%d %H:%M:%S}.{self.time.microsecond // 1000:03d}"
        line = f"{when} | {self.level:8} | {self.process} | {self.name}:{self.place} - {message}"
        return visible("\n".join(filter(None, (line, self.exception))))

    def as_json(self) -> str:
        said = {key: value for key, value in self._asdict().items() if value}
        return json.dumps({**said, "time": self.time.isoformat(timespec="milliseconds")})


class _Files:
    """The files of a folder: `run.log`, or `logs/<role>.log` of a process that has a role, and one for each process
    whose records come here. One that cannot be written is said once, and tried again with every line."""

    def __init__(self, folder: Path, as_json: bool, role: str, log: _CommandLog) -> None:
        from loguru import _logger, logger

        # Not the logger that everybody has: an agent that calls its `remove()` would end the log.
        made: Any = _logger
        options = {"exception": None, "depth": 0, "record": False, "lazy": False, "colors": False, "raw": True}
        self._loguru = made.Logger(core=made.Core(), **options, capture=False, patchers=[], extra={})
        self._heard = logger.add(
            lambda message: log.take(_from_loguru(message)), level=log.level, backtrace=False, diagnose=False
        )
        self.folder, self._as_json, self._role = folder, as_json, role
        self._sinks: dict[Path, int] = {}
        self._failed: set[Path] = set()

    def path_of(self, role: str) -> Path:
        return self.folder / "logs" / f"{role}.log" if role else self.folder / "run.log"

    def write(self, entry: _Entry, alone: bool) -> None:
        """`alone`: into the file of the process that it comes from, and not into this one's too."""
        named = entry if entry.process else entry._replace(process=self._role or "run")
        line = f"{named.as_json() if self._as_json else named.as_text()}\n"
        for role in {entry.process or self._role} if alone else {entry.process or self._role, self._role}:
            self._put(self.path_of(role), line)

    def _put(self, path: Path, line: str) -> None:
        try:
            if path not in self._sinks:
                self._sinks[path] = self._loguru.add(
                    str(path).replace("{", "{{").replace("}", "}}"),
                    filter=lambda record: record["extra"]["path"] == path,
                    rotation=ROTATED_AT,
                    retention=KEPT,
                    watch=True,  # others may write into it and put it aside: a forked child, a second server
                    delay=True,
                    catch=False,
                    encoding="utf-8",
                )
            self._loguru.bind(path=path).info(line)
        except RuntimeError:
            return  # said by a signal's handler or a destructor in the middle of a line
        except Exception as error:
            if path not in self._failed:
                self._failed.add(path)
                tell(f"{path} cannot be written ({error}): all goes on without it", file=sys.stderr)

    def close(self) -> None:
        from loguru import logger

        with contextlib.suppress(ValueError):  # an agent has removed it
            logger.remove(self._heard)
        for sink in self._sinks.values():
            with contextlib.suppress(OSError):
                self._loguru.remove(sink)


class _CommandLog:
    """Takes the records of a command; `level` is what `--log-level` says."""

    def __init__(self, level: int | None) -> None:
        self._lowered = level is not None and level < logging.WARNING
        self.level = min(level or logging.INFO, logging.INFO)
        self._waiting: deque[_Entry] = deque(maxlen=MOST_WAITING)
        self.files: _Files | None = None
        self._began = time.time()

    def hides(self, record: logging.LogRecord) -> bool:
        """True for what is there only as `command_log` has lowered a level: handlers would not have got it."""
        if self._lowered:
            return _is_chatter(record)
        last = logging.lastResort.level if logging.lastResort else logging.WARNING
        return record.name.partition(".")[0] == "astune" and record.levelno < min(last, logging.root.level)

    def take(self, record: logging.LogRecord) -> None:
        if record.levelno < self.level or _is_chatter(record):
            return
        try:
            entry = _Entry.of(record)
        except Exception:  # arguments that do not suit the text: whoever shows it says so
            entry = _Entry.of(logging.makeLogRecord({**vars(record), "msg": repr(record.msg), "args": ()}))
        if (files := self.files) is None:  # another thread may close them
            self._waiting.append(entry)
        else:
            files.write(entry, alone=record.levelno < logging.WARNING)

    def open(self, folder: Path, as_json: bool, role: str) -> None:
        self.close()
        self.files = _Files(folder, as_json, role, self)
        text = f"astune {__version__} works in {folder}: process {os.getpid()} on {socket.gethostname()}, "
        text += f"Python {platform.python_version()}"
        first = logging.LogRecord("astune.command", logging.INFO, __file__, 0, "%s", (text,), None, "open")
        first.created = self._began
        self.take(first)
        while self._waiting:
            self.files.write(self._waiting.popleft(), alone=False)

    def close(self) -> None:
        if self.files is not None:
            self.files.close()
            self.files = None


def _from_loguru(message: Any) -> logging.LogRecord:
    """Take what an agent or a library says with loguru itself, which shows it."""
    said = message.record
    trace = None if said["exception"] is None else tuple(said["exception"])
    place = (said["file"].path, said["line"])
    record = logging.LogRecord(
        said["name"], said["level"].no, *place, "%s", (said["message"],), trace, said["function"]
    )
    record.levelname = said["level"].name
    return record


def _is_chatter(record: logging.LogRecord) -> bool:
    """True for what libraries say below WARNING: headers, and addresses with tokens in them."""
    own = record.levelno >= logging.WARNING or by_user(record.pathname) or part_of_astune(Path(record.pathname))
    return not own


_current: _CommandLog | None = None


@contextlib.contextmanager
def command_log(level: int | None) -> Iterator[None]:
    """For the time of a command: its records and warnings are logged in the folder that `open_log` names. `level` is
    the least that is shown of ASTune's records and of the user's own code's; files have ASTune's from INFO on."""
    global _current
    log = _current = _CommandLog(level)
    call_handlers, show_warning = logging.Logger.callHandlers, warnings.showwarning
    before = [(logger, logger.level) for logger in (logging.root, logging.getLogger("astune"))]

    def call_and_take(logger: logging.Logger, record: logging.LogRecord) -> None:
        if not log.hides(record):
            call_handlers(logger, record)
        log.take(record)

    def show_and_take(*warning: Any, **more: Any) -> None:
        show_warning(*warning, **more)
        text, place = warnings.formatwarning(*warning[:4]).rstrip(), (str(warning[2]), int(warning[3]))
        log.take(logging.LogRecord("py.warnings", logging.WARNING, *place, "%s", (text,), None))

    logging.Logger.callHandlers = call_and_take  # type: ignore[method-assign, assignment]
    warnings.showwarning = show_and_take
    logging.root.setLevel(min(level or logging.root.level, logging.root.level))
    logging.getLogger("astune").setLevel(log.level)
    try:
        yield
    finally:
        log.close()
        _current = None
        logging.Logger.callHandlers = call_handlers  # type: ignore[method-assign]
        warnings.showwarning = show_warning
        for logger, was in before:
            logger.setLevel(was)


def open_log(folder: Path, *, as_json: bool, role: str = "") -> None:
    """Log into `folder/run.log` from now on, of a process with a role into `folder/logs/<role>.log`."""
    if _current is not None:
        _current.open(folder, as_json, role)


def close_log(folder: Path) -> None:
    """Nothing more is written into `folder`, which may be removed then."""
    if _current is not None and _current.files is not None and _current.files.folder == folder:
        _current.close()


def log_path(role: str) -> Path | None:
    """The file of another process of this run, for one that writes it itself; None where there is no log."""
    return None if _current is None or _current.files is None else _current.files.path_of(role)
