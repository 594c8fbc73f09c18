"""Steps samplers that answer in one process: a pass of each after the other, between the agents' steps.

Agents run until all of them wait for a model; then each sampler that has requests takes its step. So it does not depend
on timing which requests meet in a batch, however many samplers there are, and all are of one round (`rollout.rounds`).
"""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Protocol

from astune.rollout.rounds import Rounds

QUIET_PASSES = 48
"""Passes of the event loop without a new request after which every agent counts as waiting."""


class Driven(Protocol):
    """A sampler: the requests that wait for their first step, and those that it is at."""

    @property
    def waiting(self) -> int: ...

    @property
    def running(self) -> int: ...

    def step(self) -> None:
        """Take requests in, and compute a token for each whose prompt is computed. Raises nothing."""


class Driver:
    """Samplers call `enrol` once, and `begin` with each request. `finished` is set where an answer was handed out, so
    that agents have something to do. `steps` counts."""

    def __init__(self) -> None:
        self.rounds = Rounds()
        self.finished = False
        self.steps = 0
        self._numbers = count()
        self._at_work: dict[int, Driven] = {}
        self._work: asyncio.Task[None] | None = None

    def enrol(self) -> int:
        """Give a sampler the number that says when it is its turn."""
        return next(self._numbers)

    def begin(self, number: int, sampler: Driven) -> None:
        """Step the sampler until it has no requests; it has one now. It is let go of then."""
        self._at_work[number] = sampler
        if self._work is None or self._work.done():
            self._at_work = {number: sampler}
            self._work = asyncio.get_running_loop().create_task(self._drive())

    async def _drive(self) -> None:
        """Step until nobody waits."""
        self.finished = True
        with self.rounds.stepping():
            while self._at_work:
                await self._let_agents_run()
                while await self.rounds.settle(idle=not any(each.running for each in self._at_work.values())):
                    self.finished = True
                    await self._let_agents_run()
                self.rounds.advance()
                self.steps += 1
                for number in sorted(self._at_work):
                    self._at_work[number].step()
                self._at_work = {n: each for n, each in self._at_work.items() if each.waiting or each.running}

    async def _let_agents_run(self) -> None:
        """After an answer was handed out, give the agents time to ask for the next one."""
        quiet = 0 if self.finished else QUIET_PASSES - 1
        self.finished = False
        while quiet < QUIET_PASSES:
            before = self._count_waiting()
            await asyncio.sleep(0)
            quiet = quiet + 1 if self._count_waiting() == before else 0

    def _count_waiting(self) -> int:
        return sum(each.waiting for each in self._at_work.values())
