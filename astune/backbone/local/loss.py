"""Policy-gradient losses, one plain formula per function.

All arguments are tensors of one entry per (row, trained token): `logprob` under the weights being trained,
`sampled` as recorded by the sampler, `advantage`. Each returns the loss per entry, to be weighted and summed.
"""

from __future__ import annotations

from typing import Protocol

import torch

from astune.config.schema import AlgorithmConfig

MOST_DIFFERENCE = 20.0
"""Largest difference that counts between two log-probabilities of one token: e**20 is far beyond every clipping, and
e**89 is no number in float32."""


class Loss(Protocol):
    def __call__(
        self, logprob: torch.Tensor, sampled: torch.Tensor, advantage: torch.Tensor, config: AlgorithmConfig
    ) -> torch.Tensor: ...


def bounded(difference: torch.Tensor) -> torch.Tensor:
    """Differences of log-probabilities whose exponential, times an advantage, stays a number; no gradient beyond."""
    return difference.clamp(-MOST_DIFFERENCE, MOST_DIFFERENCE)


def ppo_clip(
    logprob: torch.Tensor, sampled: torch.Tensor, advantage: torch.Tensor, config: AlgorithmConfig
) -> torch.Tensor:
    """-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) with r = exp(logprob - sampled).

    PPO (arXiv 1707.06347) with the wider upper bound of DAPO (arXiv 2503.14476).
    """
    ratio = torch.exp(bounded(logprob - sampled))
    clipped = ratio.clamp(1.0 - config.clip_low, 1.0 + config.clip_high)
    return -torch.minimum(ratio * advantage, clipped * advantage)


def reinforce(
    logprob: torch.Tensor, sampled: torch.Tensor, advantage: torch.Tensor, config: AlgorithmConfig
) -> torch.Tensor:
    """-logprob A (Williams 1992), for updates on exactly the policy that sampled."""
    return -logprob * advantage


LOSSES: dict[str, Loss] = {"ppo_clip": ppo_clip, "reinforce": reinforce}
