"""The entries of a micro-batch that a loss is computed from."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Entries:
    """One entry per (row, trained token), all tensors (e,). Rows are whole, every entry of a row is here, and stand one
    after another, their entries in the order of the tokens."""

    logprob: torch.Tensor
    """Under the weights being trained; the only one with a gradient."""
    sampled: torch.Tensor
    """The log-probability that the sampler recorded."""
    advantage: torch.Tensor
    row: torch.Tensor
    """Number of the row (a sample) that the entry is of, int64 from 0."""
    age: torch.Tensor
    """The number of policy versions since the token was sampled, each update of a step counted; 0 for the weights that
    are being trained."""


MOST_DIFFERENCE = 20.0
"""Largest difference that counts between two log-probabilities of one token: e**20 is far beyond every clipping, and
e**89 is no number in float32."""


def bound(difference: torch.Tensor) -> torch.Tensor:
    """Clip differences of log-probabilities, so that their exponential times an advantage stays a number; there is no
    gradient beyond."""
    return difference.clamp(-MOST_DIFFERENCE, MOST_DIFFERENCE)


def row_mean(values: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    """Average `values` over the whole row of each entry: (e,) without gradient.

    >>> row_mean(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0, 0, 1])).tolist()
    [1.5, 1.5, 4.0]
    """
    exact, until = _sum_up(values)
    first, last = torch.searchsorted(row, row), torch.searchsorted(row, row, right=True) - 1
    return ((until[last] - until[first] + exact[first]) / (last - first + 1)).to(values.dtype)


def to_go(values: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    """Sum `values` from each entry to the end of its row: (e,) without gradient.

    >>> to_go(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0, 0, 1])).tolist()
    [3.0, 2.0, 4.0]
    """
    exact, until = _sum_up(values)
    last = torch.searchsorted(row, row, right=True) - 1
    return (until[last] - until + exact).to(values.dtype)


def _sum_up(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The values, and their sums from the first to each: in double precision, as such sums are subtracted."""
    exact = values.detach().double()
    return exact, exact.cumsum(0)
