"""Weights of trained tokens in the loss.

    loss_aggregation   counts the same          a token's weight                      from
    episode_mean       every episode            1 / (episodes x its tokens)           GRPO, arXiv 2402.03300
    token_mean         every token              1 / tokens                            DAPO, arXiv 2503.14476
    turn_mean          every turn               1 / (turns x its tokens)              GRPO with a turn as the answer
    agent_mean         every agent in each      1 / (agents x its tokens)
                       episode
    task_mean          every task               1 / (tasks x its tokens)              ScaleRL, arXiv 2510.13786
    constant           every token, unscaled    1 / (episodes x rollout.max_tokens)   Dr. GRPO, arXiv 2503.20783

Tokens, turns, agents, episodes and tasks are those with loss. All but `constant` sum to 1 over a step; a token that
counts on two branches (`credit: per_branch`) is two tokens here. `max_tokens` is the limit of one answer, so with
`constant` the sum grows with the length of the episodes: that is its point.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

LossAggregation = Literal["episode_mean", "token_mean", "turn_mean", "agent_mean", "task_mean", "constant"]


@dataclass(frozen=True)
class Entry:
    """The tokens that one turn has in one sample: how many, how much each counts (`share`), and where from."""

    task: Hashable
    episode: Hashable
    turn: Hashable
    tokens: int
    share: float
    agent: Hashable = None

    @property
    def size(self) -> float:
        return self.tokens * self.share


def token_weights(entries: Sequence[Entry], aggregation: LossAggregation, max_tokens: int) -> list[float]:
    """The weight of each token of each entry, 0 for entries without loss.

    >>> long, short = Entry("t", "e1", "a", 8, 1.0), Entry("t", "e2", "b", 2, 1.0)
    >>> token_weights([long, short], "episode_mean", 100), token_weights([long, short], "token_mean", 100)
    ([0.0625, 0.25], [0.1, 0.1])
    """
    units = [_unit(entry, aggregation) for entry in entries]
    sizes: dict[Hashable, float] = {}
    for unit, entry in zip(units, entries, strict=True):
        if entry.size:
            sizes[unit] = sizes.get(unit, 0.0) + entry.size
    if aggregation == "constant":
        sizes = dict.fromkeys(sizes, float(max_tokens))
    return [
        entry.share / (len(sizes) * sizes[unit]) if entry.size else 0.0
        for unit, entry in zip(units, entries, strict=True)
    ]


def _unit(entry: Entry, aggregation: LossAggregation) -> Hashable:
    """The unit that an entry belongs to, all of which count the same."""
    units: dict[LossAggregation, Hashable] = {
        "episode_mean": entry.episode,
        "constant": entry.episode,
        "token_mean": None,
        "turn_mean": entry.turn,
        "agent_mean": (entry.episode, entry.agent),
        "task_mean": entry.task,
    }
    return units[aggregation]
