"""Work that several want at the same time is done once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

R = TypeVar("R")


@dataclass
class _Flight(Generic[R]):
    task: asyncio.Task[R]
    waiters: int = 0


class SingleFlight(Generic[R]):
    """Calls that are made once for all who want the same, on one event loop.

        result, led = await flights.join(key, work)     # led: this caller's `work` is what was done

    All who join get the same result or exception. Work goes on while anyone waits for it, also when the first has
    been cancelled; it is cancelled with the last.
    """

    def __init__(self) -> None:
        self._flights: dict[str, _Flight[R]] = {}

    async def join(self, key: str, work: Callable[[], Coroutine[Any, Any, R]]) -> tuple[R, bool]:
        flight = self._flights.get(key)
        led = flight is None
        if flight is None:
            flight = self._flights[key] = _Flight(asyncio.create_task(self._landing(key, work)))
        flight.waiters += 1
        try:
            return await asyncio.shield(flight.task), led
        finally:
            flight.waiters -= 1
            if flight.waiters == 0 and not flight.task.done():
                flight.task.cancel()
                self._flights.pop(key, None)

    async def _landing(self, key: str, work: Callable[[], Coroutine[Any, Any, R]]) -> R:
        try:
            return await work()
        finally:
            flight = self._flights.get(key)
            if flight is not None and flight.task is asyncio.current_task():
                del self._flights[key]
