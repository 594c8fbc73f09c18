"""Persistent processes that compare formulas (`math_worker`), and the hard limit on how long one may take."""

from __future__ import annotations

import asyncio
import os
import selectors
import threading
import weakref
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from time import monotonic

from astune.errors import JudgeError
from astune.task_judge.math_process import MathProcess

MAX_KNOWN = 100_000
"""Results that are kept, some 100 bytes each."""
AHEAD = 4
"""Most comparisons that a process has at a time, so that it need not wait for this process between two."""
PATIENCE = 0.1
"""Seconds after which what waits behind a comparison goes to another process."""


class MathPool:
    """`equal` from any number of episodes at once, in `workers` processes that start when they are needed.

    A comparison that takes longer than `timeout` seconds costs its process, which is replaced, and nothing else.
    It may be used from several threads and event loops. The processes end with the pool, with the interpreter, and if
    this process is killed.
    """

    def __init__(self, workers: int, timeout: float) -> None:
        self._dealer = _Dealer(workers, timeout)
        self._end = weakref.finalize(self, self._dealer.close)
        self._known: dict[tuple[str, str], Future[bool | None]] = {}
        self._lock = threading.Lock()

    @property
    def pids(self) -> list[int]:
        """Ids of the processes that are running."""
        return [process.pid for process in self._dealer.processes]

    async def equal(self, reference: str, answer: str) -> bool | None:
        """None for an answer that is no mathematics. Raises `JudgeError` if the comparison took too long, failed, or
        `reference` is no mathematics.

        The attempts at one task often end with the same answer: it is compared once. Failures are not kept.
        """
        return await asyncio.shield(asyncio.wrap_future(self._future(reference, answer)))

    def _future(self, reference: str, answer: str) -> Future[bool | None]:
        pair = (reference, answer)
        with self._lock:
            future = self._known.get(pair)
            if future is None or (future.done() and future.exception() is not None):
                if len(self._known) >= MAX_KNOWN:
                    self._known.clear()
                comparison = Comparison(reference, answer)
                future = self._known[pair] = comparison.future
                self._dealer.add(comparison)
        return future


@dataclass(frozen=True, eq=False)
class Comparison:
    reference: str
    answer: str
    future: Future[bool | None] = field(default_factory=Future)

    def fail(self, why: str) -> None:
        self.future.set_exception(JudgeError(f"comparing {self.answer!r} with {self.reference!r}: {why}"))

    def finish(self, reply: dict[str, bool | str | None]) -> None:
        if "error" in reply:
            self.fail(str(reply["error"]))
        else:
            self.future.set_result(None if reply["equal"] is None else bool(reply["equal"]))


class _Dealer(threading.Thread):
    """The thread that deals comparisons to processes, reads what they reply, and kills those that take too long.

    It alone touches the processes; others hand it comparisons through `add` and end it by `close`.
    """

    def __init__(self, workers: int, timeout: float) -> None:
        super().__init__(name="math-judge", daemon=True)
        self._workers = workers
        self._timeout = timeout
        self._waiting: deque[Comparison] = deque()
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe()
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._closed = False
        self.processes: list[MathProcess[Comparison]] = []

    def add(self, comparison: Comparison) -> None:
        comparison.future.set_running_or_notify_cancel()  # nobody may cancel what others wait for as well
        self._waiting.append(comparison)
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

    def _read(self, process: MathProcess[Comparison]) -> None:
        replies = process.read()
        if replies is None:
            self._lose(process)
            return
        for comparison, reply in replies:
            comparison.finish(reply)

    def _lose(self, process: MathProcess[Comparison]) -> None:
        """Ends a process. The comparison it was at fails; those behind it go to others."""
        self.processes.remove(process)
        self._selector.unregister(process.stdout)
        at, behind = process.take_back()
        why = process.end()
        if not process.ready:  # the next would not start either
            while self._waiting:
                self._waiting.popleft().fail(why)
            return
        if at is not None:
            at.fail(why)
        self._waiting.extendleft(reversed(behind))

    def _deal(self) -> None:
        for process in self.processes:
            if process.slow(PATIENCE):
                self._waiting.extendleft(reversed(process.take_back_behind()))
        for load in range(AHEAD):
            for process in self.processes:
                if self._waiting and process.ready and process.load == load and not process.slow(PATIENCE):
                    comparison = self._waiting.popleft()
                    process.send(comparison, comparison.reference, comparison.answer)
            if load == 0:
                self._start_processes()

    def _start_processes(self) -> None:
        """As many as there are comparisons for which no process is idle, or soon will be."""
        starting = sum(not process.ready for process in self.processes)
        for _ in range(min(len(self._waiting) - starting, self._workers - len(self.processes))):
            process: MathProcess[Comparison] = MathProcess(self._timeout)
            self.processes.append(process)
            self._selector.register(process.stdout, selectors.EVENT_READ, process)

    def _give_up(self) -> None:
        for process in self.processes:
            process.end()
        self.processes.clear()
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)
