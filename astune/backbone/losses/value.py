"""What a critic minimises."""

from __future__ import annotations

import torch


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


def explained_variance(value: torch.Tensor, returns: torch.Tensor) -> float:
    """1 - Var(returns - value) / Var(returns): 1 for a perfect critic, 0 for one that says the same everywhere, below 0
    for a worse one. 0 where all returns are equal."""
    spread = returns.double().var(correction=0)
    if not spread > 0:
        return 0.0
    return float(1.0 - (returns.double() - value.double()).var(correction=0) / spread)
