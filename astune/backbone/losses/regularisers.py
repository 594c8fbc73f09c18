"""Penalties that hold the policy near where it began. Each formula stands for one entry (e,); d = log pi - log
pi_reference."""

from __future__ import annotations

from collections.abc import Callable

import torch

from astune.backbone.losses.entries import bound


def k1(difference: torch.Tensor) -> torch.Tensor:
    """d. Its mean over sampled tokens is KL(pi | reference); each may be below 0.

    For the reward only: there it stands for itself. As a loss its gradient is that of log pi, whose mean is 0, so that
    nothing would pull the policy back.
    """
    return difference


def k2(difference: torch.Tensor) -> torch.Tensor:
    """d^2 / 2. A little off as a value; as a loss its gradient d * grad log pi is that of KL(pi | reference)."""
    return difference.square() / 2


def k3(difference: torch.Tensor) -> torch.Tensor:
    """exp(-d) - 1 + d. Its mean is KL(pi | reference) and none is below 0; as a loss its mean gradient is that of
    KL(reference | pi)."""
    return torch.exp(bound(-difference)) - 1 + difference


KL: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"k1": k1, "k2": k2, "k3": k3}
"""Schulman, Approximating KL Divergence (2020), joschu.net/blog/kl-approx.html. Values and gradients are right for
tokens of the policy that is trained, and nearly so while it stays near the one that sampled."""
