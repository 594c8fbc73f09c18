"""Carry events from the processes of a Trinity run back to the driver, the one that the user looks at.

One Ray actor holds what happened until the driver takes it, which alone writes the run folder and the progress
display. It also carries the driver's wish to stop the other way, and the word that the run is over, upon which each
process tears down what its workflow has set up.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import Any

import ray

from astune.backbone.trinity.shared.events import Event, SetupFailed

NAME = "astune_mailbox"


class Mailbox:
    """The actor. `engine` is Trinity's configuration of the rollout model, which Trinity does not tell the reader of
    tasks; that one needs it to evaluate."""

    def __init__(self, engine: Any, explorer: str) -> None:
        self._engine, self._explorer = engine, explorer
        self._events: deque[Event | SetupFailed] = deque()
        self._stopping = False
        self._over, self._all_closed = asyncio.Event(), asyncio.Event()
        self._open = 0

    def put(self, event: Event | SetupFailed) -> None:
        self._events.append(event)

    def take(self, most: int) -> list[Event | SetupFailed]:
        """Take out the oldest events."""
        return [self._events.popleft() for _ in range(min(most, len(self._events)))]

    def stop(self) -> None:
        self._stopping = True

    def stopping(self) -> bool:
        return self._stopping

    def count_open(self) -> None:
        """A process has set up its workflow."""
        self._open += 1
        self._all_closed.clear()

    def count_closed(self) -> None:
        """A process has torn down its workflow."""
        self._open -= 1
        if not self._open:
            self._all_closed.set()

    async def over(self) -> None:
        """Returns when the run is over."""
        await self._over.wait()

    async def end(self, seconds: float) -> None:
        """The run is over: returns when all workflows are torn down, at the latest after `seconds`."""
        self._over.set()
        if self._open:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._all_closed.wait(), seconds)

    def engine(self) -> tuple[Any, str]:
        """The configuration of the rollout model, and the name of the explorer's actor."""
        return self._engine, self._explorer


def open_mailbox(engine: Any, explorer: str) -> Any:
    """Made by the driver, which must keep the handle: the actor lives as long as it does."""
    return ray.remote(Mailbox).options(name=NAME, num_cpus=0).remote(engine, explorer)


def find_mailbox() -> Any:
    """For the other processes of the run: they share its Ray namespace."""
    return ray.get_actor(NAME)


def post(event: Event | SetupFailed) -> None:
    """Hand an event over without waiting."""
    find_mailbox().put.remote(event)
