"""What a critic's values make of rewards: advantages for the policy, returns for the critic itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from astune.algorithm.gae import gae, token_rewards
from astune.backbone.losses.value import explained_variance
from astune.config.algorithm import CriticConfig
from astune.types import Sample

STD_FLOOR = 1e-6


@dataclass(frozen=True)
class Appraisal:
    """What the critic says of the trained tokens of some samples, one tensor for each sample. `advantages` have mean 0
    and standard deviation 1 over all tokens; `returns` are what the values should have been."""

    values: tuple[torch.Tensor, ...]
    returns: tuple[torch.Tensor, ...]
    advantages: tuple[torch.Tensor, ...]

    def figures(self) -> dict[str, float]:
        values, returns = torch.cat(self.values), torch.cat(self.returns)
        return {
            "critic/explained_variance": explained_variance(values, returns),
            "critic/value_mean": float(values.mean()),
            "critic/return_mean": float(returns.mean()),
        }


def appraise(samples: Sequence[Sample], values: Sequence[torch.Tensor], config: CriticConfig) -> Appraisal:
    """From the value of what stands before each trained token of each sample."""
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
