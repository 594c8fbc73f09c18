"""One chat API among several: when it may be asked, whether it is worth asking, and what its replies cost. Rate limit
and circuit breaker compute with times in seconds and read no clock."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping
from typing import Any, Protocol

from astune.clients.chat import ChatClient, ChatReply
from astune.clients.usage import Usage, usage_of_call
from astune.config.chat_models import JudgeModelConfig
from astune.errors import PolicyError

logger = logging.getLogger(__name__)

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
        """The time at which the bucket is full again."""

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

    def note_failure(self, now: float) -> float:
        """Returns the seconds of the rest that begins; 0 where one is under way."""
        if self.resting(now):
            return 0.0
        self._failures += 1
        rest = min(FIRST_REST * 2.0 ** (self._failures - 1), LONGEST_REST)
        self._until = now + rest
        return rest

    def note_answer(self) -> None:
        self._failures = 0
        self._until = -math.inf


class ChatCompleter(Protocol):
    """What answers as `ChatClient` does."""

    async def complete(self, body: Mapping[str, Any]) -> ChatReply: ...


class LimitedModel:
    """A `ChatClient`, or the `client` that is put in its place, with a rate limit and a circuit breaker. Raises
    ConfigError as that does."""

    def __init__(self, name: str, config: JudgeModelConfig, *, key: str) -> None:
        self.name = name
        self.config = config
        self.limit = None if config.requests_per_minute is None else RateLimit(config.requests_per_minute)
        self.last_failure = ""
        self.client: ChatCompleter = ChatClient(name, config, key=key)
        self._breaker = CircuitBreaker()
        self._warned = False

    def resting(self) -> bool:
        return self._breaker.resting(asyncio.get_running_loop().time())

    async def turn(self) -> None:
        """Waits until the rate limit lets a request go. To be called by one at a time."""
        if self.limit is not None:
            loop = asyncio.get_running_loop()
            await asyncio.sleep(self.limit.wait(loop.time()))
            self.limit.take(loop.time())

    async def complete(self, body: Mapping[str, Any]) -> tuple[ChatReply, Usage]:
        """The reply and what it cost. Raises as `ChatClient.complete` does; after a PolicyError the model rests."""
        try:
            reply = await self.client.complete(body)
        except PolicyError as error:
            self.last_failure = str(error)
            rest = self._breaker.note_failure(asyncio.get_running_loop().time())
            if rest:
                logger.warning("%s rests for %.0f s if another model can be asked: %s", self.name, rest, error)
            raise
        self._breaker.note_answer()
        if reply.usage is None and not self._warned:
            self._warned = True
            logger.warning("%s does not report tokens: they count as 0, and the cost is unknown", self.name)
        return reply, usage_of_call(reply.usage, self.config)
