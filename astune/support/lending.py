"""Things that are dear to make, lent to whoever needs one: made ahead, had alone or together, and ended in any case."""

from __future__ import annotations

import asyncio
import itertools
import logging
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from astune.errors import EnvServiceError
from astune.support.concurrency import has_result

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(eq=False)
class Loan(Generic[T]):
    """What one episode has, or several have together."""

    key: str
    columns: Mapping[str, object]
    """Of the task that it was first taken for."""
    making: asyncio.Task[T] = field(init=False)
    holders: int = 0
    has_place: bool = False
    """It counts among the most that may be lent."""


class Lender(ABC, Generic[T]):
    """Lends things to episodes: each has its own (`isolation` is "episode"), the attempts at a task have one together
    ("task"), or all have the same, which stays until `close`.

        loan = await lender.take("task-17")
        thing = await lender.get(loan)
        lender.give_back(loan)

    At most `most` are lent at a time, and whoever comes when all are waits. Between `open` and `close` it keeps `warm`
    of them ready, made side by side.
    """

    def __init__(self, isolation: str, warm: int, most: int) -> None:
        self._isolation, self._warm = isolation, warm
        self._is_shared = isolation not in ("episode", "task")
        self._most = 1 if self._is_shared else most
        self._room = asyncio.Semaphore(self._most)
        self._numbers = itertools.count()
        self._loans: dict[str, Loan[T]] = {}
        self._idle: list[asyncio.Task[T]] = []
        """Those that nobody has, some still under way."""
        self._ending: set[asyncio.Task[None]] = set()
        self._is_open = False

    @abstractmethod
    async def make(self) -> T:
        """A new one. Raises EnvServiceError. Nothing is left of one that fails or is cancelled."""

    @abstractmethod
    async def end(self, thing: T) -> None:
        """End it. Never raises."""

    @abstractmethod
    def works(self, thing: T) -> bool:
        """False once it is of no more use to anybody."""

    async def prepare(self, thing: T, columns: Mapping[str, object]) -> None:
        """Fit it to a task. Raises EnvServiceError where that cannot be: it is ended."""

    def can_be_renewed(self, thing: T) -> bool:
        """True if others are to have it after those who had it; otherwise it is ended."""
        return False

    async def renew(self, thing: T) -> None:
        """Make it as new, as soon as it is given back. Raises EnvServiceError where that cannot be: it is ended."""

    def open(self, least: int = 0) -> None:
        """Begin to make those that are kept ready, at least so many."""
        self._is_open = True
        self._refill(least)

    async def close(self) -> None:
        """End all, side by side. Returns once nothing is left."""
        self._is_open = False
        makings = [*self._idle, *(loan.making for loan in self._loans.values())]
        self._idle, self._loans = [], {}
        for making in makings:
            making.cancel()
        await asyncio.gather(*makings, return_exceptions=True)
        for making in makings:
            if has_result(making):
                self._end_soon(making.result())
        while self._ending:
            await asyncio.wait(self._ending)

    async def take(self, task_id: str, /, **columns: object) -> Loan[T]:
        """One for an attempt at the task, of which `columns` are told. Raises EnvServiceError."""
        key = {"episode": str(next(self._numbers)), "task": task_id}.get(self._isolation, "")
        if key not in self._loans:
            loan = self._loans[key] = Loan(key, columns)
            loan.making = _begin(self._make_ready(loan))
        loan = self._loans[key]
        loan.holders += 1
        try:
            await self.get(loan)
        except BaseException:
            self.give_back(loan)
            raise
        return loan

    async def get(self, loan: Loan[T]) -> T:
        """The thing itself; one that all share is made anew where it works no more. Raises EnvServiceError."""
        is_made = has_result(loan.making)
        is_over = is_made and self._is_shared and not self.works(loan.making.result())
        if is_over:
            self._end_soon(loan.making.result())
        if is_over or (loan.making.done() and not is_made):
            loan.making = _begin(self._make_ready(loan))
        return await asyncio.shield(loan.making)

    def give_back(self, loan: Loan[T]) -> asyncio.Task[None] | None:
        """One holder less. The end that this brings about, if it does."""
        loan.holders -= 1
        is_made = has_result(loan.making)
        if loan.holders or (is_made and self._is_shared) or self._loans.get(loan.key) is not loan:
            return None
        del self._loans[loan.key]
        if loan.has_place:
            self._room.release()
        ending = None
        if not is_made:
            loan.making.cancel()
        elif self.can_be_renewed(loan.making.result()):
            self._idle.append(_begin(self._renew(loan.making.result())))
            # it may end before it begins
            self._idle[-1].add_done_callback(lambda done: has_result(done) or self._end_soon(loan.making.result()))
        else:
            ending = self._end_soon(loan.making.result())
        self._refill()
        return ending

    async def _make_ready(self, loan: Loan[T]) -> T:
        if not loan.has_place:
            await self._room.acquire()
            loan.has_place = True
        kept = next(filter(has_result, self._idle), self._idle[0]) if self._idle else None
        if kept is not None:
            self._idle.remove(kept)
            self._refill()
        making = kept or _begin(self.make())
        try:
            thing = await making
            if not self.works(thing):
                raise EnvServiceError("it has ended")
            await self.prepare(thing, loan.columns)
            return thing
        except BaseException as error:
            if has_result(making):
                self._end_soon(making.result())
            if kept is None or not isinstance(error, EnvServiceError):
                raise
            logger.info("another takes the place of one that was kept: %s", error)
        return await self._make_ready(loan)

    async def _renew(self, thing: T) -> T:
        await self.renew(thing)
        return thing

    def _end_soon(self, thing: T) -> asyncio.Task[None]:
        ending = asyncio.ensure_future(self.end(thing))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)
        return ending

    def _refill(self, least: int = 0) -> None:
        wanted = min(max(self._warm, least), self._most - len(self._loans)) if self._is_open else 0
        self._idle += [_begin(self.make()) for _ in range(wanted - len(self._idle))]


def _begin(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    task = asyncio.ensure_future(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())  # whoever waits for it is told
    return task
