"""One thread that writes for many: what waits together is committed together."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

import sqlalchemy as sa

from astune.errors import StoreError
from astune.store.database import Database

Result = TypeVar("Result")
Work = Callable[[sa.Connection], Result]
MOST_TOGETHER = 256
_Job = tuple["Future[object]", "Work[object]"]


class Writer:
    """Writes to `database` in the order of the calls.

        writer = Writer(database)
        number = await writer.write(lambda connection: insert_feedback(connection, feedback))
        writer.close()

    Invariant: a `write` that returned is committed. One that raised has changed nothing, and the others that were
    committed with it stand.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="astune-store", daemon=True)
        self._thread.start()

    async def write(self, work: Work[Result]) -> Result:
        """What `work` returns, once it is committed. A caller that is cancelled leaves the work to be done."""
        return await asyncio.shield(asyncio.wrap_future(self.submit(work)))

    def submit(self, work: Work[Result]) -> Future[Result]:
        """`write` for callers without an event loop. Raises StoreError after `close`."""
        if self._closed:
            raise StoreError("the store is closed")
        done: Future[Result] = Future()
        self._jobs.put((done, work))  # type: ignore[arg-type]
        return done

    def close(self) -> None:
        """Return once all that was asked for is written."""
        if not self._closed:
            self._closed = True
            self._jobs.put(None)
            self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            jobs: list[_Job] = [job]
            last = False
            while len(jobs) < MOST_TOGETHER and not self._jobs.empty():
                more = self._jobs.get()
                if more is None:
                    last = True
                    break
                jobs.append(more)
            self._commit(jobs)
            if last:
                return

    def _commit(self, jobs: list[_Job]) -> None:
        """All in one transaction, each behind a savepoint of its own if there are several."""
        outcomes: list[tuple[Future[object], object, Exception | None]] = []
        try:
            with self._database.writing() as connection:
                if len(jobs) == 1:
                    outcomes.append((jobs[0][0], jobs[0][1](connection), None))
                else:
                    outcomes += [_attempt(connection, job) for job in jobs]
        except Exception as error:  # the transaction itself failed: nothing of it stands
            outcomes = [(future, None, error) for future, _ in jobs]
        for future, result, failure in outcomes:
            if failure is None:
                future.set_result(result)
            else:
                future.set_exception(failure)


def _attempt(connection: sa.Connection, job: _Job) -> tuple[Future[object], object, Exception | None]:
    future, work = job
    try:
        with connection.begin_nested():
            return future, work(connection), None
    except Exception as error:
        return future, None, error
