"""One chat API among several: when it may be asked, whether it is worth asking, and what its replies cost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from astune.clients.chat import ChatClient, ChatReply
from astune.clients.rate_limit import CircuitBreaker, RateLimit
from astune.clients.usage import Usage, usage_of_call
from astune.config.chat_models import JudgeModelConfig
from astune.errors import PolicyError

logger = logging.getLogger(__name__)


class LimitedModel:
    """A `ChatClient` with a rate limit and a circuit breaker. Raises ConfigError as that does."""

    def __init__(self, name: str, config: JudgeModelConfig, *, key: str) -> None:
        self.name = name
        self.config = config
        self.limit = None if config.requests_per_minute is None else RateLimit(config.requests_per_minute)
        self.last_failure = ""
        self._client = ChatClient(name, config, key=key)
        self._breaker = CircuitBreaker()
        self._warned = False

    def resting(self) -> bool:
        return self._breaker.resting(asyncio.get_running_loop().time())

    async def turn(self) -> None:
        """Waits until the rate limit lets a request go. To be called by one at a time."""
        if self.limit is not None:
            clock = asyncio.get_running_loop().time
            await asyncio.sleep(self.limit.wait(clock()))
            self.limit.take(clock())

    async def complete(self, body: Mapping[str, Any]) -> tuple[ChatReply, Usage]:
        """The reply and what it cost. Raises as `ChatClient.complete` does; after a PolicyError the model rests."""
        try:
            reply = await self._client.complete(body)
        except PolicyError as error:
            self.last_failure = str(error)
            rest = self._breaker.failed(asyncio.get_running_loop().time())
            if rest:
                logger.warning("%s rests for %.0f s if another model can be asked: %s", self.name, rest, error)
            raise
        self._breaker.answered()
        if reply.usage is None and not self._warned:
            self._warned = True
            logger.warning("%s does not report tokens: they count as 0, and the cost is unknown", self.name)
        return reply, usage_of_call(reply.usage, self.config)
