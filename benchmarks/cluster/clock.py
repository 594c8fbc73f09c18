"""Simulated time: events, and processes that wait for them.

def cook(clock: Clock) -> Process:
    yield clock.sleep(180.0)
    ...

clock = Clock()
done = clock.start(cook(clock))     # an Event too: it happens when the process returns
clock.run()                         # clock.now == 180.0
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Iterable
from itertools import count
from typing import TypeAlias


class Event:
    """Happens once; whoever waits for it goes on then."""

    def __init__(self) -> None:
        self.happened = False
        self._then: list[Callable[[], None]] = []

    def happen(self) -> None:
        if not self.happened:
            self.happened = True
            waiting, self._then = self._then, []
            for then in waiting:
                then()

    def then(self, call: Callable[[], None]) -> None:
        """`call()` when the event happens, at once if it has."""
        if self.happened:
            call()
        else:
            self._then.append(call)


Process: TypeAlias = Generator[Event, None, None]


class Clock:
    """Seconds since the start, and what is to happen when. Equal times happen in the order they were asked for."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._number = count()

    def at(self, time: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._due, (time, next(self._number), call))

    def sleep(self, seconds: float) -> Event:
        event = Event()
        if seconds > 0:
            self.at(self.now + seconds, event.happen)
        else:
            event.happen()
        return event

    def start(self, process: Process) -> Event:
        """Runs the process up to its first event that has not happened, and on from there; its end is the result."""
        ended = Event()

        def go_on() -> None:
            for event in process:
                if not event.happened:
                    event.then(go_on)
                    return
            ended.happen()

        go_on()
        return ended

    def run(self) -> None:
        """Until nothing is left to happen."""
        while self._due:
            self.now, _, call = heapq.heappop(self._due)
            call()


def all_of(events: Iterable[Event]) -> Event:
    """Happens when the last of them has."""
    together = Event()
    waiting = [event for event in events if not event.happened]
    left = len(waiting)

    def one_less() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            together.happen()

    for event in waiting:
        event.then(one_less)
    if left == 0:
        together.happen()
    return together


def any_of(events: Iterable[Event]) -> Event:
    """Happens when the first of them does."""
    either = Event()
    for event in events:
        event.then(either.happen)
    return either
