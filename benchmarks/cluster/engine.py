"""One inference engine: continuous batching, as a rate that all running calls share.

A decode step gives every running call one token and takes `step + per_call_running * running` seconds: `step` is
reading the weights, the rest is attention over each call's own keys and values. So tokens per second grow with the
number running and saturate at `1 / per_call_running`. Reading the new tokens of a prompt holds up all calls of the
engine for `per_prompt_token` seconds each, and a call for `per_call` seconds once.
"""

from __future__ import annotations

import heapq
from collections.abc import Container
from dataclasses import dataclass
from itertools import count

from cluster.clock import Clock, Event

ROUNDING = 1e-6
"""Of a token: what floating point may miss."""


@dataclass(frozen=True)
class Speed:
    """Seconds; see above."""

    step: float
    per_call_running: float
    per_prompt_token: float = 0.0
    per_call: float = 0.0

    def decode_step(self, running: int) -> float:
        return self.step + self.per_call_running * running

    def work(self, calls: int, prompt_tokens: int, output_tokens: int, running: int) -> float:
        """Least seconds of one engine for so much, with never more than `running` calls at a time."""
        decode = output_tokens * self.decode_step(running) / running
        return calls * self.per_call + prompt_tokens * self.per_prompt_token + decode


class Engine:
    """Calls run at once, however many; how many there can be is the number of runners, not the engine's affair.

    `_progress` counts the decode steps so far: a call of n tokens that begins at progress p ends at p + n. Prompts that
    are still to be read come first.
    """

    def __init__(self, clock: Clock, speed: Speed, most: int) -> None:
        """`most` calls can run at a time: what the seconds in `worked` are measured by."""
        self._clock = clock
        self._speed = speed
        self._least = speed.decode_step(most) / most
        self._running: list[tuple[float, int, Event]] = []
        self._number = count()
        self._progress = 0.0
        self._to_read = 0.0
        self._paused = 0.0
        self._updated = 0.0
        self._plan = 0
        self.busy = 0.0
        """Seconds with at least one call running."""
        self.worked = 0.0
        """Seconds that the same tokens would have taken with as many calls running as there can be."""
        self.decoded = 0.0
        """Tokens."""

    def call(self, prompt_tokens: int, output_tokens: int) -> Event:
        """Happens when the last token is there."""
        self.update()
        self._to_read += self._speed.per_call + prompt_tokens * self._speed.per_prompt_token
        done = Event()
        heapq.heappush(self._running, (self._progress + output_tokens, next(self._number), done))
        self._plan_next()
        return done

    def abort(self, calls: Container[Event]) -> None:
        """Those of the calls that run here end now."""
        self.update()
        ended = [done for _, _, done in self._running if done in calls]
        self._running = [entry for entry in self._running if entry[2] not in calls]
        heapq.heapify(self._running)
        self._plan_next()
        for done in ended:
            done.happen()

    def pause(self, seconds: float) -> None:
        """Nothing moves for so long: new weights are loaded."""
        self.update()
        self._paused += seconds
        self._plan_next()

    def update(self) -> None:
        """Brings all figures up to the present."""
        passed = self._clock.now - self._updated
        self._updated = self._clock.now
        paused = min(passed, self._paused)
        self._paused -= paused
        if not self._running:
            return
        reading = min(passed - paused, self._to_read)
        self._to_read -= reading
        steps = (passed - paused - reading) / self._speed.decode_step(len(self._running))
        self._progress += steps
        self.decoded += steps * len(self._running)
        self.worked += reading + steps * len(self._running) * self._least
        self.busy += passed

    def _plan_next(self) -> None:
        """The next call to end, unless something else happens before."""
        self._plan += 1
        if self._running:
            steps = max(0.0, self._running[0][0] - self._progress)
            seconds = self._paused + self._to_read + steps * self._speed.decode_step(len(self._running))
            plan = self._plan
            self._clock.at(self._clock.now + seconds, lambda: self._end(plan))

    def _end(self, plan: int) -> None:
        if plan != self._plan:
            return
        self.update()
        ended = []
        while self._running and self._running[0][0] <= self._progress + ROUNDING:
            ended.append(heapq.heappop(self._running)[2])
        self._plan_next()
        for done in ended:
            done.happen()
