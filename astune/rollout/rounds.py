"""Keep an engine in step with agents that compute in other processes, so that the batches of a seed do not depend on
timing.

An engine goes on step by step. What is sent to a worker between two steps belongs to that round, and so does what comes
of it: the calls of the agents that it woke, the episodes that ended. All of it is held until the engine comes to the
step that is its turn, for which the engine waits: `AHEAD` steps later, so that agents and engine compute at the same
time, and at once where the engine has nothing else to do. Then it is let go in an order of its own.

    ticket = rounds.open()                      # before a message goes to a worker
    rounds.close(ticket, [(key, call), ...])    # what came of it; in the order of the keys
    await rounds.settle(idle=False)            # in the engine, before a step; again, as long as it gives True
    rounds.advance()
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from operator import itemgetter
from typing import TypeAlias

logger = logging.getLogger(__name__)

AHEAD = 1
"""Steps that an engine takes while the agents think that it has answered."""
PATIENCE = 10.0
"""Seconds that an engine waits for agents that go on computing."""

Ticket: TypeAlias = tuple[int, int]
"""A message to a worker: the round it belongs to, and its number among all."""
Due: TypeAlias = tuple[tuple[int, ...], Callable[[], None]]
"""Something to be done when its turn comes, behind what orders it among the others of its round."""


class Rounds:
    """The rounds of one engine. Used on one event loop at a time."""

    def __init__(self) -> None:
        self._number = 0
        self._numbers = count()
        self._open: set[Ticket] = set()
        self._held: dict[int, list[Due]] = {}
        self._stepping = False
        self._closed = asyncio.Event()

    def open(self, *, waited_for: bool = True) -> Ticket:
        """A message is now sent: to be closed. The engine does not wait for one that goes to a worker which has kept it
        waiting too long already."""
        ticket = self._number, next(self._numbers)
        if waited_for:
            self._open.add(ticket)
        return ticket

    def is_open(self, ticket: Ticket) -> bool:
        """True if the engine waits, or will wait, for the message to be closed."""
        return ticket in self._open

    def close(self, ticket: Ticket, due: Iterable[Due] = ()) -> None:
        """A message has had its effect, which is `due`."""
        self._held.setdefault(ticket[0], []).extend(due)
        self._open.discard(ticket)
        self._closed.set()
        if not self._stepping and not self._open:
            self._let_go(self._number)

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """The engine has work: it calls `settle` before each step."""
        self._stepping = True
        try:
            yield
        finally:
            self._stepping = False
            if not self._open:
                self._let_go(self._number)

    async def settle(self, *, idle: bool) -> bool:
        """Wait for what is due before the next step, and let it go. True if there was anything, so that agents may have
        gone on. `idle`: the engine has nothing else to compute."""
        last = self._number if idle else self._number - AHEAD
        while any(number <= last for number, _ in self._open):
            self._closed = asyncio.Event()  # of the loop that runs now
            try:
                await asyncio.wait_for(self._closed.wait(), PATIENCE)
            except asyncio.TimeoutError:
                logger.warning(
                    "agents have computed for %g s without waiting for anything; the engine goes on without them, and "
                    "from here on equal seeds may give other tokens",
                    PATIENCE,
                )
                self._open = {ticket for ticket in self._open if ticket[0] > last}
        return self._let_go(last)

    def advance(self) -> None:
        """The engine takes its next step."""
        self._number += 1

    def _let_go(self, last: int) -> bool:
        due: list[Due] = []
        for number in sorted(number for number in self._held if number <= last):
            due += sorted(self._held.pop(number), key=itemgetter(0))
        for _, do in due:
            do()
        return bool(due)
