"""Places that work waits for in the order of its rank."""

from __future__ import annotations

import asyncio
import heapq
from dataclasses import dataclass
from itertools import count


class Places:
    """At most `number` are taken at a time. Who waits goes by rank, the lowest first, and then by who came first.

    async with places.of(rank):
        ...
    """

    def __init__(self, number: int) -> None:
        self._free = number
        self._numbers = count()
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []

    def of(self, rank: int) -> Place:
        """To be entered as often as there is work of that rank."""
        return Place(self, rank)

    async def take(self, rank: int) -> None:
        if self._free:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (rank, next(self._numbers), turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it was given the place as it was cancelled
                self.give()
            raise

    def give(self) -> None:
        """A place goes to who is next, and is free only where nobody waits."""
        while self._waiting:
            _, _, turn = heapq.heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


@dataclass(frozen=True)
class Place:
    places: Places
    rank: int

    async def __aenter__(self) -> None:
        await self.places.take(self.rank)

    async def __aexit__(self, *exc_info: object) -> None:
        self.places.give()
