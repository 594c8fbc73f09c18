"""One running process of a pool, as `pool` sees it."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from time import monotonic
from typing import IO, Any, Generic, TypeVar

START_SECONDS = 60.0
"""Most time for a process to load its libraries; it counts against no request."""

COMPUTED_TOO_LONG = -signal.SIGPROF
CRASHES = (COMPUTED_TOO_LONG, -signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS)
"""Exit codes of a process that its request brought down. One that only took too long may have waited for a busy
machine."""

T = TypeVar("T")


class WorkerProcess(Generic[T]):
    """Replies to requests in the order in which they are sent, at most `timeout` seconds each, of which it may compute
    for a fifth. Used by one thread.

    `arguments` are those of Python; the seconds that a request may take in the process itself are put behind them. It
    first writes one line, when it is ready, then one JSON object for each line that it reads.
    The time of a request begins when it is sent, or when the reply to the one before it is read. Of requests that were
    taken back the reply is dropped.
    """

    def __init__(self, arguments: Sequence[str], timeout: float) -> None:
        # A session of its own: Ctrl-C in a terminal is for the run, which saves and still wants its verdicts.
        self._arguments = arguments
        self._popen = subprocess.Popen(
            [sys.executable, *arguments, str(timeout + 1)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,
        )
        self._timeout = timeout
        self._since = monotonic()
        self._sent: deque[T | None] = deque()
        self._unread = b""
        self.ready = False
        self.failed_by_request = False
        """Once it has ended: because of the request that it was at, which computed for too long or crashed it."""

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def stdout(self) -> IO[bytes]:
        assert self._popen.stdout
        return self._popen.stdout

    @property
    def load(self) -> int:
        """Requests that were sent and have no reply yet."""
        return len(self._sent)

    def send(self, item: T, request: Sequence[Any]) -> None:
        """`item` comes back with the reply. A process that has died is noticed when it is read."""
        assert self._popen.stdin
        if not self._sent:
            self._since = monotonic()
        self._sent.append(item)
        try:
            self._popen.stdin.write(json.dumps(request).encode() + b"\n")
        except BrokenPipeError:
            return

    def read(self) -> list[tuple[T, dict[str, Any]]] | None:
        """The replies that are there; None if the process has ended."""
        data = self.stdout.read(65536)
        if not data:
            return None
        *lines, self._unread = (self._unread + data).split(b"\n")
        if lines and not self.ready:
            self.ready = True
            lines = lines[1:]
        replies = [(self._sent.popleft(), json.loads(line)) for line in lines]
        self._since = monotonic()
        return [(item, reply) for item, reply in replies if item is not None]

    def overdue(self) -> bool:
        return self._deadline() <= monotonic()

    def slow(self, patience: float) -> bool:
        """Whether it has been at one request for `patience` seconds."""
        return bool(self._sent) and monotonic() - self._since >= patience

    def moments(self, patience: float) -> list[float]:
        """Times at which it becomes slow, if anything waits behind, or overdue."""
        if self.ready and not self._sent:
            return []
        waits = any(item is not None for item in list(self._sent)[1:])
        return [self._deadline(), *([self._since + patience] if waits else [])]

    def take_back_behind(self) -> list[T]:
        """What waits behind the request that it is at; the replies to them will be dropped."""
        if not self._sent:
            return []
        at, *behind = self._sent
        self._sent = deque([at, *[None] * len(behind)])
        return [item for item in behind if item is not None]

    def take_back(self) -> tuple[T | None, list[T]]:
        """The request that it is at, if anyone waits for it, and those behind."""
        behind = self.take_back_behind()
        return (self._sent[0] if self._sent else None), behind

    def end(self) -> str:
        """Kills the process and says why it had to end."""
        overdue = self.overdue()
        self._popen.kill()
        self._popen.wait()
        for pipe in (self._popen.stdin, self._popen.stdout):
            assert pipe
            pipe.close()
        if not self.ready:
            return f"the process did not start; `{shlex.join([sys.executable, *self._arguments, '10'])}` shows why"
        self.failed_by_request = self._popen.returncode in CRASHES
        if self._popen.returncode == COMPUTED_TOO_LONG:
            return f"took more than {self._timeout / 5:g} seconds of computing and was stopped"
        if overdue:
            return f"took longer than {self._timeout:g} seconds and was stopped"
        return f"died with exit code {self._popen.returncode}"

    def _deadline(self) -> float:
        if not self.ready:
            return self._since + START_SECONDS
        return self._since + self._timeout if self._sent else float("inf")
