"""Policy-gradient losses, one plain formula per function. Each returns the loss per entry (e,), to be weighted and
summed."""

from __future__ import annotations

from collections.abc import Callable

import torch

from astune.backbone.losses.entries import Entries, bounded
from astune.config.schema import AlgorithmConfig

PolicyLoss = Callable[[Entries, AlgorithmConfig], torch.Tensor]


def ppo_clip(entries: Entries, config: AlgorithmConfig) -> torch.Tensor:
    """-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) with r = exp(logprob - sampled).

    PPO (arXiv 1707.06347) with the wider upper bound of DAPO (arXiv 2503.14476).
    """
    ratio = torch.exp(bounded(entries.logprob - entries.sampled))
    clipped = ratio.clamp(1.0 - config.clip_low, 1.0 + config.clip_high)
    return -torch.minimum(ratio * entries.advantage, clipped * entries.advantage)


def reinforce(entries: Entries, config: AlgorithmConfig) -> torch.Tensor:
    """-logprob A (Williams 1992), for updates on exactly the policy that sampled."""
    return -entries.logprob * entries.advantage


LOSSES: dict[str, PolicyLoss] = {"ppo_clip": ppo_clip, "reinforce": reinforce}
