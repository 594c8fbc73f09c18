"""The loss that a critic minimises, and the advantages and returns that its values and the rewards give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from astune.config.algorithm import CriticConfig
from astune.types import Sample

STD_FLOOR = 1e-6


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


@dataclass(frozen=True)
class Appraisal:
    """The critic's values of the trained tokens of some samples, one tensor for each sample. `advantages` have mean 0
    and standard deviation 1 over all tokens; `returns` are what the values should have been."""

    values: tuple[torch.Tensor, ...]
    returns: tuple[torch.Tensor, ...]
    advantages: tuple[torch.Tensor, ...]

    def figures(self) -> dict[str, float]:
        values, returns = torch.cat(self.values), torch.cat(self.returns)
        return {
            "critic/explained_variance": compute_explained_variance(values, returns),
            "critic/value_mean": float(values.mean()),
            "critic/return_mean": float(returns.mean()),
        }


def appraise(samples: Sequence[Sample], values: Sequence[torch.Tensor], config: CriticConfig) -> Appraisal:
    """Compute advantages and returns from the value of the text before each trained token of each sample."""
    advantages, returns = [], []
    for sample, of_sample in zip(samples, values, strict=True):
        said = of_sample.tolist()
        found = gae(token_rewards(sample), said, config.gamma, config.gae_lambda)
        advantages.append(torch.tensor(found, dtype=torch.float64))
        returns.append(advantages[-1] + torch.tensor(said, dtype=torch.float64))
    whole = torch.cat(advantages)
    mean, std = whole.mean(), whole.std(correction=0)
    scaled = [torch.zeros_like(each) if std < STD_FLOOR else (each - mean) / std for each in advantages]
    return Appraisal(tuple(values), tuple(returns), tuple(scaled))


def value_loss(value: torch.Tensor, returns: torch.Tensor, old: torch.Tensor, clip: float | None) -> torch.Tensor:
    """(value - returns)^2 / 2 per entry (e,), to be weighted and summed.

    With `clip` it is never less than that of a value no further than `clip` from `old`, what the critic said before its
    first update on these tokens: one that has moved further in the right direction gains nothing by it (the value
    clipping of PPO's first implementation; Huang et al., The 37 implementation details of PPO, 2022).
    """
    squared = (value - returns) ** 2
    if clip is not None:
        near = old + (value - old).clamp(-clip, clip)
        squared = torch.maximum(squared, (near - returns) ** 2)
    return 0.5 * squared


def compute_explained_variance(value: torch.Tensor, returns: torch.Tensor) -> float:
    """1 - Var(returns - value) / Var(returns): 1 for a perfect critic, 0 for one that says the same everywhere, below 0
    for a worse one. 0 where all returns are equal."""
    spread = returns.double().var(correction=0)
    if not spread > 0:
        return 0.0
    return float(1.0 - (returns.double() - value.double()).var(correction=0) / spread)
