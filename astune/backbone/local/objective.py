"""What an update minimises over a micro-batch, and the figures that come with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from astune.backbone.local.batch import MicroBatch
from astune.backbone.local.forward import Forward
from astune.backbone.losses.entries import Entries, bounded
from astune.backbone.losses.policy import LOSSES
from astune.config.schema import AlgorithmConfig


@dataclass(frozen=True)
class Objective:
    """`loss` (e,) is the share of each entry in the loss of the update, weights included: the update minimises its
    sum. `figures` are this micro-batch's shares of the update's figures, which are sums."""

    loss: torch.Tensor
    figures: Mapping[str, torch.Tensor]


def policy_objective(batch: MicroBatch, forward: Forward, config: AlgorithmConfig, policy_version: int) -> Objective:
    """The loss `astune.algorithm.loss` over sampled tokens."""
    entries = entries_of(batch, forward.logprob, policy_version)
    loss = LOSSES[config.loss](entries, config) * batch.weight
    with torch.no_grad():
        difference = bounded(forward.logprob - batch.sampled)
        ratio = difference.exp()
        outside = (ratio < 1 - config.clip_low) | (ratio > 1 + config.clip_high)
        figures = {
            "entropy": (forward.entropy(batch) * batch.weight).sum(),
            "kl/sampler": ((ratio - 1 - difference) * batch.weight).sum(),
            "clip_fraction": (outside * batch.weight).sum(),
        }
    return Objective(loss, figures)


def entries_of(batch: MicroBatch, logprob: torch.Tensor, policy_version: int) -> Entries:
    """The loss entries of a micro-batch, under the weights that gave `logprob` (e,)."""
    return Entries(logprob, batch.sampled, batch.advantage, batch.row, policy_version - batch.version)
