"""One thread that writes for many: what waits together is committed together."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

import sqlalchemy as sa

from astune.errors import StoreError
from astune.store.database import WAIT_SECONDS, Database, is_gone, pause_after_conflict, reason

Result = TypeVar("Result")
Work = Callable[[sa.Connection], Result]
MOST_TOGETHER = 256
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
"""Seconds between attempts to reach a server that is away."""
_Job = tuple["Future[object]", "Work[object]"]
_Outcome = tuple["Future[object]", object, "BaseException | None"]


class _Undone(Exception):
    """A transaction that was rolled back. `away`: the database was not reached, or the connection was lost; `conflict`:
    another transaction was in the way."""

    def __init__(self, error: BaseException, *, away: bool, conflict: bool) -> None:
        self.error, self.away, self.conflict = error, away, conflict

    @property
    def passes(self) -> bool:
        """True if the same transaction may succeed later."""
        return self.away or self.conflict


class Writer:
    """Writes to `database` in the order of the calls.

        writer = Writer(database)
        number = await writer.write(lambda connection: insert_feedback(connection, feedback))
        writer.close()

    Invariant: a `write` that returned is committed. One that raised has changed nothing, and the others that were
    committed with it stand; only where PostgreSQL is lost while it commits can nobody tell, and the StoreError says so.

    Work does nothing but speak to its connection: it is called again where a transaction was rolled back as a whole, as
    something beside it failed, and for `WAIT_SECONDS` if another transaction is in its way or PostgreSQL is away. What
    may have been committed is never tried again.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self.failure: str | None = None
        """Why the last transaction was not written; None if it was."""
        self._thread = threading.Thread(target=self._run, name="astune-store", daemon=True)
        self._thread.start()

    async def write(self, work: Work[Result]) -> Result:
        """Return the result of `work` once it is committed. Raises what `work` raises, and StoreError if the database
        cannot be written. The work is done even if the caller is cancelled."""
        return await asyncio.shield(asyncio.wrap_future(self.submit(work)))

    def submit(self, work: Work[Result]) -> Future[Result]:
        """`write` for callers without an event loop. Raises StoreError after `close`."""
        done: Future[Result] = Future()
        with self._lock:
            if self._closed:
                raise StoreError("the store is closed")
            self._jobs.put((done, work))  # type: ignore[arg-type]
        return done

    def close(self) -> None:
        """Return once all that was asked for is written."""
        with self._lock:
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
            self._settle([each for each in jobs if each[0].set_running_or_notify_cancel()])
            if last:
                return

    def _settle(self, jobs: list[_Job]) -> None:
        """Commit all together; where one fails, again with a savepoint around each; where that fails as a whole, one by
        one, so that each has the answer that is its own."""
        until, pause, apart = time.monotonic() + WAIT_SECONDS, FIRST_PAUSE, False
        while jobs:
            try:
                outcomes = self._commit(jobs, apart)
            except _Undone as undone:
                if undone.conflict and time.monotonic() < until:
                    pause_after_conflict()
                    continue
                if undone.away and time.monotonic() < until:
                    time.sleep(pause)
                    pause = min(2 * pause, LONGEST_PAUSE)
                    continue
                if len(jobs) > 1 and not undone.passes and not apart:
                    apart = True
                    continue
                if len(jobs) > 1 and not undone.passes:
                    for job in jobs:
                        self._settle([job])
                    return
                outcomes = [(future, None, self._explain(undone.error)) for future, _ in jobs]
            self.failure = next((str(told) for _, _, told in outcomes if isinstance(told, StoreError)), None)
            for future, result, failure in outcomes:
                if failure is None:
                    future.set_result(result)
                else:
                    future.set_exception(failure)
            return

    def _commit(self, jobs: list[_Job], apart: bool) -> list[_Outcome]:
        """All in one transaction, with `apart` each behind a savepoint of its own. Raises _Undone."""
        outcomes: list[_Outcome] = []
        phase = "connect"
        try:
            with self._database.writing() as connection:
                phase = "work"
                if apart:
                    outcomes += [_attempt(connection, job) for job in jobs]
                else:
                    outcomes += [(future, work(connection), None) for future, work in jobs]
                phase = "commit"
        except BaseException as error:
            away = is_gone(error) or (phase == "connect" and isinstance(error, sa.exc.OperationalError))
            if phase == "commit" and is_gone(error):
                lost = StoreError(f"{self._database.address} was lost in a commit: nobody knows whether it stands")
                return [(future, None, lost) for future, _ in jobs]
            conflict = self._database.is_conflict(error)
            raise _Undone(error, away=away and not self._database.is_sqlite, conflict=conflict) from error
        return outcomes

    def _explain(self, error: BaseException) -> BaseException:
        """Turn an error into one for the caller: its own, or the database's without statement and values."""
        if not isinstance(error, sa.exc.OperationalError) and not is_gone(error):
            return error
        told = StoreError(f"the database {self._database.address} takes nothing: {reason(error)}")
        told.__cause__ = error
        return told


def _attempt(connection: sa.Connection, job: _Job) -> _Outcome:
    future, work = job
    savepoint = connection.begin_nested()
    try:
        result = work(connection)
    except Exception as error:
        if isinstance(error, sa.exc.OperationalError) or is_gone(error):
            raise  # a full disk or a lost connection: the transaction is gone, not only this part of it
        savepoint.rollback()
        return future, None, error
    savepoint.commit()
    return future, result, None
