"""The cost of calls of chat APIs, and limits on it."""

from __future__ import annotations

from dataclasses import dataclass

from astune.clients.chat import TokenUsage
from astune.config.chat_models import PricedModelConfig
from astune.errors import AstuneError


class BudgetSpent(AstuneError):
    """The next call would exceed a `Budget`. It was not sent."""


@dataclass(frozen=True)
class Usage:
    """The cost of calls; adds up with +.

        Usage(calls=1, prompt_tokens=100, cost=0.01) + Usage(cached=1)     # 1 call, 1 cached, 100 tokens, 0.01

    A call counts when its reply has come, whether the reply could be used or not.
    """

    calls: int = 0
    cached: int = 0
    """Replies that cost nothing: from the cache, or of an equal request that was under way."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float | None = 0.0
    """In the currency of the prices. None as soon as one call's price or tokens are not known."""

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            calls=self.calls + other.calls,
            cached=self.cached + other.cached,
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            cost=None if self.cost is None or other.cost is None else self.cost + other.cost,
        )


def usage_of_call(tokens: TokenUsage | None, config: PricedModelConfig) -> Usage:
    """The usage of one call. Tokens that the API did not report count as 0, and leave the cost unknown. Tokens that it
    had in its own cache are priced like all others, so the cost is an upper bound."""
    if tokens is None:
        return Usage(calls=1, cost=None)
    cost = None
    if config.prompt_price is not None and config.completion_price is not None:
        cost = (
            tokens.prompt_tokens * config.prompt_price + tokens.completion_tokens * config.completion_price
        ) / 1_000_000
    return Usage(calls=1, prompt_tokens=tokens.prompt_tokens, completion_tokens=tokens.completion_tokens, cost=cost)


@dataclass(frozen=True)
class Budget:
    """A limit on what the calls of a `ChatModels` may cost, from its first one on. None: no limit.

    No call is sent beyond `max_calls`. Calls under way when `max_cost` is reached are still paid.
    """

    max_calls: int | None = None
    max_cost: float | None = None

    def check(self, usage: Usage, under_way: int) -> None:
        """Raises BudgetSpent where one more call, after `usage` and beside `under_way` calls, is one too many."""
        if self.max_calls is not None and usage.calls + under_way >= self.max_calls:
            raise BudgetSpent(f"all {self.max_calls} model calls of the budget are made; replies so far are cached")
        if self.max_cost is None:
            return
        if usage.cost is None:
            raise BudgetSpent(f"the budget is {self.max_cost:g}, but an API did not report tokens: the cost is unknown")
        if usage.cost >= self.max_cost:
            raise BudgetSpent(f"the budget of {self.max_cost:g} is spent: {usage.calls} calls cost {usage.cost:.4g}")
