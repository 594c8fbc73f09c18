"""A pool of persistent processes, and the hard limit on how long each of their requests may take."""

from __future__ import annotations

import json
import os
import selectors
import shlex
import signal
import subprocess
import sys
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from time import monotonic
from typing import IO, Any

from astune.errors import JudgeError

AHEAD = 4
"""Most requests that a process has at a time, so that it need not wait for this process between two."""
PATIENCE = 0.1
"""Seconds after which what waits behind a request goes to another process."""
START_SECONDS = 60.0
"""Most time for a process to load its libraries; it counts against no request."""
COMPUTED_TOO_LONG = -signal.SIGPROF
CRASHES = (COMPUTED_TOO_LONG, -signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS)
"""Exit codes of a process that its request brought down. One that only took too long may have waited for a busy
machine."""


class RequestFailed(JudgeError):
    """A request computed for too long, brought its process down, or cannot be replied to: its own fault, not that of
    the process or of what ended it."""


class WorkerPool:
    """Requests from any number of episodes at once, in `workers` processes that start when they are needed.

        pool = WorkerPool(["worker.py"], workers=2, timeout=10.0)
        reply = pool.submit(["72", "x"], "comparing '72' with 'x'").result()

    `arguments` are those of Python, see `WorkerProcess`. A request that takes longer than `timeout` seconds costs its
    process, which is replaced, and nothing else. A pool may be used from several threads and event loops. The processes
    end with the pool, with the interpreter, and if this process is killed.
    """

    def __init__(self, arguments: Sequence[str], workers: int, timeout: float) -> None:
        self._dealer = _Dealer(arguments, workers, timeout)
        self._end = weakref.finalize(self, self._dealer.close)

    @property
    def pids(self) -> list[int]:
        """Ids of the processes that are running."""
        return [process.pid for process in self._dealer.processes]

    def submit(self, payload: Sequence[Any], what: str) -> Future[dict[str, Any]]:
        """The reply to come, for which several may wait. Its exception begins with `what`: `RequestFailed` if it
        computed for too long, crashed the process, or the reply is `{"error": text}`, `JudgeError` if the process did
        not start, was killed, or took longer than `timeout` without computing for a fifth: a busy machine."""
        request = PoolRequest(payload, what)
        self._dealer.add(request)
        return request.future


@dataclass(frozen=True, eq=False)
class PoolRequest:
    payload: Sequence[Any]
    what: str
    future: Future[dict[str, Any]] = field(default_factory=Future)

    def fail(self, why: str, error: type[JudgeError] = JudgeError) -> None:
        self.future.set_exception(error(f"{self.what}: {why}"))

    def finish(self, reply: dict[str, Any]) -> None:
        if "error" in reply:
            self.fail(str(reply["error"]), RequestFailed)
        else:
            self.future.set_result(reply)


class WorkerProcess:
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
        self._sent: deque[PoolRequest | None] = deque()
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

    def send(self, request: PoolRequest) -> None:
        """A process that has died is noticed when it is read."""
        assert self._popen.stdin
        if not self._sent:
            self._since = monotonic()
        self._sent.append(request)
        try:
            self._popen.stdin.write(json.dumps(request.payload).encode() + b"\n")
        except BrokenPipeError:
            return

    def read(self) -> list[tuple[PoolRequest, dict[str, Any]]] | None:
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
        """True if it has been at one request for `patience` seconds."""
        return bool(self._sent) and monotonic() - self._since >= patience

    def moments(self, patience: float) -> list[float]:
        """Times at which it becomes slow, if anything waits behind, or overdue."""
        if self.ready and not self._sent:
            return []
        waits = any(item is not None for item in list(self._sent)[1:])
        return [self._deadline(), *([self._since + patience] if waits else [])]

    def take_back_behind(self) -> list[PoolRequest]:
        """Take back what waits behind the request that it is at; the replies to it will be dropped."""
        if not self._sent:
            return []
        at, *behind = self._sent
        self._sent = deque([at, *[None] * len(behind)])
        return [item for item in behind if item is not None]

    def take_back(self) -> tuple[PoolRequest | None, list[PoolRequest]]:
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


class _Dealer(threading.Thread):
    """The thread that deals requests to processes, reads what they reply, and kills those that take too long.

    It alone touches the processes; others hand it requests through `add` and end it by `close`.
    """

    def __init__(self, arguments: Sequence[str], workers: int, timeout: float) -> None:
        super().__init__(name="worker-pool", daemon=True)
        self._arguments = arguments
        self._workers = workers
        self._timeout = timeout
        self._waiting: deque[PoolRequest] = deque()
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe()
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._closed = False
        self.processes: list[WorkerProcess] = []

    def add(self, request: PoolRequest) -> None:
        request.future.set_running_or_notify_cancel()  # nobody may cancel what others wait for as well
        self._waiting.append(request)
        if self.ident is None:
            self.start()
        self._wake()

    def close(self) -> None:
        self._closed = True
        if self.ident is None:
            self._give_up()
            return
        self._wake()
        if self is not threading.current_thread():  # the pool may end in a garbage collection of this very thread
            self.join(5)

    def run(self) -> None:
        while not self._closed:
            for key, _ in self._selector.select(self._pause()):
                if key.data is None:
                    os.read(self._wake_read, 4096)
                else:
                    self._read(key.data)
            for process in [process for process in self.processes if process.overdue()]:
                self._lose(process)
            self._deal()
        self._give_up()

    def _wake(self) -> None:
        os.write(self._wake_write, b"\0")

    def _pause(self) -> float | None:
        """Seconds until something has to be looked at."""
        moments = [moment for process in self.processes for moment in process.moments(PATIENCE)]
        return max(0.0, min(moments) - monotonic()) if moments else None

    def _read(self, process: WorkerProcess) -> None:
        replies = process.read()
        if replies is None:
            self._lose(process)
            return
        for request, reply in replies:
            request.finish(reply)

    def _lose(self, process: WorkerProcess) -> None:
        """Ends a process. The request it was at fails; those behind it go to others."""
        self.processes.remove(process)
        self._selector.unregister(process.stdout)
        at, behind = process.take_back()
        why = process.end()
        if not process.ready:  # the next would not start either
            while self._waiting:
                self._waiting.popleft().fail(why)
            return
        if at is not None:
            at.fail(why, RequestFailed if process.failed_by_request else JudgeError)
        self._waiting.extendleft(reversed(behind))

    def _deal(self) -> None:
        for process in self.processes:
            if process.slow(PATIENCE):
                self._waiting.extendleft(reversed(process.take_back_behind()))
        for load in range(AHEAD):
            for process in self.processes:
                if self._waiting and process.ready and process.load == load and not process.slow(PATIENCE):
                    process.send(self._waiting.popleft())
            if load == 0:
                self._start_processes()

    def _start_processes(self) -> None:
        """Start one for each request for which no process is idle, or soon will be."""
        starting = sum(not process.ready for process in self.processes)
        for _ in range(min(len(self._waiting) - starting, self._workers - len(self.processes))):
            process = WorkerProcess(self._arguments, self._timeout)
            self.processes.append(process)
            self._selector.register(process.stdout, selectors.EVENT_READ, process)

    def _give_up(self) -> None:
        for process in self.processes:
            process.end()
        self.processes.clear()
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)
