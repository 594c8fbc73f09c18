"""One process at a time in the folder of a run."""

from __future__ import annotations

import fcntl
import logging
import os
import shlex
import socket
import sys
import weakref
from datetime import datetime
from pathlib import Path

from astune.errors import ConfigError
from astune.monitor.disk import writing

logger = logging.getLogger(__name__)

LOCK = "lock"
"""Empty while nobody works in the folder, else it says who does."""


class RunLock:
    """Holds the folder until `release`, or until the process is gone, however it ended: the system gives the lock back.

    Raises ConfigError that names the process that has it. Readers (`astune report`, `astune view`) need no lock.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / LOCK
        with writing(path):
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        self._close = weakref.finalize(self, os.close, self._file)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(self._file, 10_000).decode(errors="replace").strip() or "another process"
            self._close()
            raise ConfigError(
                f"{folder} is in use by {holder}. Wait until that run has ended, or end it; without --resume a run "
                "gets a folder of its own"
            ) from None
        except OSError as error:
            logger.warning("%s cannot be locked (%s): a second run in it would not be noticed", folder, error)
        _held.add(self)
        now = datetime.now().isoformat(sep=" ", timespec="seconds")
        holder = f"process {os.getpid()} on {socket.gethostname()} since {now}: {shlex.join(sys.argv)}\n"
        with writing(path):
            os.truncate(self._file, 0)
            os.write(self._file, holder.encode(errors="replace"))

    def release(self) -> None:
        """Safe to call twice."""
        if self._close.alive:
            # The file stays: with it removed, two processes could each lock one of that name.
            os.truncate(self._file, 0)
            self._close()

    def forget(self) -> None:
        """In a forked process, which would keep the lock when its parent is gone."""
        self._close()


_held: weakref.WeakSet[RunLock] = weakref.WeakSet()


def _forget_all() -> None:
    for lock in _held:
        lock.forget()


os.register_at_fork(after_in_child=_forget_all)
