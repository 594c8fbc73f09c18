"""Generalised advantage estimation: the advantage of every sampled token from rewards and a critic's values."""

from __future__ import annotations

from collections.abc import Sequence

from astune.types import Sample


def gae(rewards: Sequence[float], values: Sequence[float], gamma: float, lam: float) -> list[float]:
    """The advantages of the tokens of one row (GAE, arXiv 1506.02438, equation 16).

        delta(t) = reward(t) + gamma value(t + 1) - value(t)
        A(t)     = delta(t) + gamma lam A(t + 1)

    `rewards[t]` is paid for token t, `values[t]` is the critic's of what stands before it; after the last token the
    value is 0. Only sampled tokens count: context between them takes no time. Added to the values they are the returns
    that the critic is taught.

    >>> gae([0.0, 1.0], [0.25, 0.5], gamma=1.0, lam=1.0), gae([0.0, 1.0], [0.25, 0.5], gamma=1.0, lam=0.0)
    ([0.75, 0.5], [0.25, 0.5])
    """
    found = []
    later_value = later = 0.0
    for reward, value in zip(reversed(rewards), reversed(values), strict=True):
        later = reward + gamma * later_value - value + gamma * lam * later
        later_value = value
        found.append(later)
    return found[::-1]


def token_rewards(sample: Sample) -> list[float]:
    """The reward that is paid for each trained token of a sample, in order. The reward of a turn that is not trained
    here goes to the trained token before it."""
    paid: list[float] = []
    for span, weight, reward in zip(sample.timeline.spans, sample.weights, sample.rewards, strict=True):
        if weight:
            paid += [0.0] * len(span)
        if paid:
            paid[-1] += reward
    return paid
