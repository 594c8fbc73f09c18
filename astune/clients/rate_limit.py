"""A rate limit, and a rest after failures, which say when a model may be asked next. They compute with times in seconds
and read no clock."""

from __future__ import annotations

import math

FIRST_REST = 30.0
LONGEST_REST = 300.0


class RateLimit:
    """A token bucket: in no minute more than `per_minute` requests, rounded up; evenly spaced after a burst of a tenth
    of them.

        limit = RateLimit(60)          # 6 at once, then one in 60/55 s
        limit.wait(now)                # seconds until the next request may go
        limit.take(now)                # it goes
    """

    def __init__(self, per_minute: float) -> None:
        self.burst = max(1, int(per_minute / 10))
        self.interval = 60.0 / (per_minute - self.burst + 1)
        self._full_at = -math.inf
        """When the bucket is full again."""

    def wait(self, now: float) -> float:
        return max(0.0, self._full_at - (self.burst - 1) * self.interval - now)

    def take(self, now: float) -> None:
        self._full_at = max(self._full_at, now) + self.interval


class CircuitBreaker:
    """Lets a model that failed rest: 30 seconds, twice as long after each further failure up to 5 minutes, until it
    answers. Failures of calls that were under way when the rest began do not add to it."""

    def __init__(self) -> None:
        self._failures = 0
        self._until = -math.inf

    def resting(self, now: float) -> bool:
        return now < self._until

    def failed(self, now: float) -> float:
        """Returns the seconds of the rest that begins; 0 where one is under way."""
        if self.resting(now):
            return 0.0
        self._failures += 1
        rest = min(FIRST_REST * 2.0 ** (self._failures - 1), LONGEST_REST)
        self._until = now + rest
        return rest

    def answered(self) -> None:
        self._failures = 0
        self._until = -math.inf
