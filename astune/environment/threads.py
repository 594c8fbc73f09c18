"""Blocking work in threads, awaited on an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class Workers:
    """At most `limit` threads, started as they are needed, for one event loop.

    Work that was begun is always waited for, also by a caller that is cancelled, so a lock that is held around `run`
    is held as long as the work goes on. The threads are daemons: work that never ends does not keep the process alive.
    Compared with `ThreadPoolExecutor`, results that come close together wake the loop once.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._threads = 0
        self._pending: set[asyncio.Future[Any]] = set()
        self._queue: SimpleQueue[tuple[asyncio.Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._finished: deque[tuple[asyncio.Future[Any], Any, Exception | None]] = deque()
        self._waking = False
        self._stopped = False

    async def run(self, work: Callable[[], T]) -> T:
        """Do `work` in a thread and return its result. What it raises is raised here; what is no `Exception`, as
        `SystemExit`, comes as `RuntimeError`."""
        if self._stopped:
            raise _too_late()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._pending.add(future)
        self._queue.put((future, work))
        if self._threads < min(len(self._pending), self._limit):
            self._threads += 1
            threading.Thread(target=self._work, args=(loop,), name="astune-environment", daemon=True).start()
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait([future])
            future.exception()  # nobody else will look at it
            raise

    def stop(self) -> None:
        """Work that has not ended by now is given up: who waits for it, or comes later, gets `TimeoutError`."""
        self._stopped = True
        for _ in range(self._threads):
            self._queue.put(None)
        for future in self._pending:
            future.set_exception(_too_late())
            future.exception()  # who waits for it may itself have been cancelled
        self._pending.clear()

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        while item := self._queue.get():
            future, work = item
            try:
                self._finished.append((future, work(), None))
            except Exception as error:
                self._finished.append((future, None, error))
            except BaseException as error:  # what ends the thread must not end the service
                self._finished.append((future, None, RuntimeError(f"{type(error).__name__}: {error}")))
            del future, work, item
            if not self._waking:
                self._waking = True
                try:
                    loop.call_soon_threadsafe(self._deliver)
                except RuntimeError:  # the loop is closed
                    return

    def _deliver(self) -> None:
        self._waking = False  # first, so that what is appended from now on wakes the loop again
        while self._finished:
            future, result, error = self._finished.popleft()
            if future not in self._pending:
                continue
            self._pending.remove(future)
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(RuntimeError(repr(error)) if isinstance(error, StopIteration) else error)


def _too_late() -> TimeoutError:
    return TimeoutError("the service ended before the environment answered")
