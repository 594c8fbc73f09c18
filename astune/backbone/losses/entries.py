"""What a loss sees of a micro-batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Entries:
    """One entry per (row, trained token), all tensors (e,). Rows are whole: every entry of a row is here."""

    logprob: torch.Tensor
    """Under the weights being trained; the only one with a gradient."""
    sampled: torch.Tensor
    """As the sampler recorded it."""
    advantage: torch.Tensor
    row: torch.Tensor
    """Number of the row (a sample) that the entry is of, int64 from 0."""
    age: torch.Tensor
    """How many policy versions ago the token was sampled; 0 for the version that is sampled from now."""


MOST_DIFFERENCE = 20.0
"""Largest difference that counts between two log-probabilities of one token: e**20 is far beyond every clipping, and
e**89 is no number in float32."""


def bounded(difference: torch.Tensor) -> torch.Tensor:
    """Differences of log-probabilities whose exponential, times an advantage, stays a number; no gradient beyond."""
    return difference.clamp(-MOST_DIFFERENCE, MOST_DIFFERENCE)
