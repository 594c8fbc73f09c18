"""A pool of persistent processes, and the hard limit on how long each of their requests may take."""

from __future__ import annotations

import os
import selectors
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from astune.errors import JudgeError
from astune.workers.process import WorkerProcess

AHEAD = 4
"""Most requests that a process has at a time, so that it need not wait for this process between two."""
PATIENCE = 0.1
"""Seconds after which what waits behind a request goes to another process."""


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
        self.processes: list[WorkerProcess[PoolRequest]] = []

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

    def _read(self, process: WorkerProcess[PoolRequest]) -> None:
        replies = process.read()
        if replies is None:
            self._lose(process)
            return
        for request, reply in replies:
            request.finish(reply)

    def _lose(self, process: WorkerProcess[PoolRequest]) -> None:
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
                    request = self._waiting.popleft()
                    process.send(request, request.payload)
            if load == 0:
                self._start_processes()

    def _start_processes(self) -> None:
        """As many as there are requests for which no process is idle, or soon will be."""
        starting = sum(not process.ready for process in self.processes)
        for _ in range(min(len(self._waiting) - starting, self._workers - len(self.processes))):
            process: WorkerProcess[PoolRequest] = WorkerProcess(self._arguments, self._timeout)
            self.processes.append(process)
            self._selector.register(process.stdout, selectors.EVENT_READ, process)

    def _give_up(self) -> None:
        for process in self.processes:
            process.end()
        self.processes.clear()
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)
