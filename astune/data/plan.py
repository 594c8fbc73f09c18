"""The calls and the cost of making tasks, before any is made: bounds, as nobody knows how many proposals fail."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from statistics import mean

from astune.config.tasks import AugmentConfig
from astune.data.grow import PER_CALL, Parent, most_visits
from astune.data.prompts import program_messages, solve_messages

LETTERS_OF_A_TOKEN = 4
SHORTEST_REPLY = 60
"""Tokens of the shortest reply that can be used, for the lower bound."""


@dataclass(frozen=True)
class CallPlan:
    """Bounds: the first where every proposal passes all, the second where every source is asked as often as may be.
    Replies that have to be asked for again are not in it. `costs` are None where a price is not set."""

    calls: tuple[int, int]
    costs: tuple[float, float] | None
    of_policy: int = 0

    def say(self) -> str:
        cost = "the cost is not known: the models have no prompt_price and completion_price"
        if self.costs is not None:
            cost = f"which cost about {self.costs[0]:.4g} to {self.costs[1]:.4g}"
        policy = f"; the policy is asked up to {self.of_policy:,} times on top" if self.of_policy else ""
        return f"{self.calls[0]:,} to {self.calls[1]:,} model calls, {cost}; less what the cache has{policy}"


def plan_calls(config: AugmentConfig, target: int, sources: Sequence[Parent], closed_book: bool) -> CallPlan:
    """`closed_book`: questions are also tried without their documents."""
    agree, code = config.solutions * ("agree" in config.checks), int("code" in config.checks)
    least = 1 if config.checks[0] == "code" else agree
    most = agree + code
    if closed_book:
        least, most = config.solutions, most + 2 * config.solutions
    asked = ceil(target / PER_CALL), most_visits(sources, target) * len(sources)
    calls = asked[0] + target * least, asked[1] * (1 + PER_CALL * most)
    if config.max_calls is not None:
        calls = min(calls[0], config.max_calls), min(calls[1], config.max_calls)
    of_policy = config.tries * PER_CALL * asked[1] if config.policy else 0
    return CallPlan(calls, _cost(config, calls, asked, sources), of_policy)


def _cost(
    config: AugmentConfig, calls: tuple[int, int], asked: tuple[int, int], sources: Sequence[Parent]
) -> tuple[float, float] | None:
    first = config.models[0] if config.models else None
    if first is None or first.prompt_price is None or first.completion_price is None:
        return None
    proposing = mean(_tokens(source.ask(0)[1]) for source in sources)
    texts = [source.text for source in sources]
    checking = mean(max(_tokens(solve_messages(text, None)), _tokens(program_messages(text, None))) for text in texts)
    prompts = [min(n, m) * proposing + max(0, n - m) * checking for n, m in zip(calls, asked, strict=True)]
    replies = calls[0] * SHORTEST_REPLY, calls[1] * config.max_tokens
    low, high = (
        (prompt * first.prompt_price + reply * first.completion_price) / 1_000_000
        for prompt, reply in zip(prompts, replies, strict=True)
    )
    return (low, high) if config.max_cost is None else (min(low, config.max_cost), min(high, config.max_cost))


def _tokens(messages: Sequence[dict[str, str]]) -> int:
    return len(json.dumps(messages, ensure_ascii=False)) // LETTERS_OF_A_TOKEN
