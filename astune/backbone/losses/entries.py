"""The trained tokens of a sample as columns, which every engine makes its batches of, and the entries of a micro-batch
that a loss is computed from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from astune.errors import TrainingError
from astune.token_ids import TokenIds
from astune.types import Sample


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


class TrainedTokens(NamedTuple):
    """One entry per token with weight, all (e,), in the order of the tokens. `place` is its index in the timeline, at
    least 1, as something has to predict it; `sampled` its log-probability as recorded; `version` the policy's that
    sampled it."""

    place: np.ndarray
    target: np.ndarray
    sampled: np.ndarray
    advantage: np.ndarray
    weight: np.ndarray
    temperature: np.ndarray
    version: np.ndarray


def token_array(sample: Sample) -> np.ndarray:
    """The token ids of a sample's timeline, int32."""
    return np.frombuffer(TokenIds.of(sample.timeline.token_ids).pack(), np.int32)


def collect_trained(sample: Sample) -> TrainedTokens:
    """Collect the trained tokens of a sample. Raises TrainingError for one that nothing predicts."""
    chosen = [
        (span, advantage, weight)
        for span, advantage, weight in zip(sample.timeline.spans, sample.advantages, sample.weights, strict=True)
        if weight and len(span)
    ]
    if not chosen:
        raise ValueError(f"nothing of the sample of episode {sample.episode_id} has weight")
    lengths = [len(span) for span, _, _ in chosen]
    if chosen[0][0].start == 0:
        turn = chosen[0][0].turn
        raise TrainingError(f"turn {turn} of {sample.episode_id} has an empty prompt: nothing predicts it")
    place = np.concatenate([np.arange(span.start, span.stop) for span, _, _ in chosen])

    def column(values: list[float]) -> np.ndarray:
        return np.repeat(np.asarray(values), lengths)

    return TrainedTokens(
        place=place,
        target=token_array(sample)[place],
        sampled=np.concatenate([np.asarray(span.logprobs) for span, _, _ in chosen]),
        advantage=column([float(advantage) for _, advantage, _ in chosen]),
        weight=column([float(weight) for _, _, weight in chosen]),
        temperature=column([float(span.temperature) for span, _, _ in chosen]),
        version=np.repeat(np.asarray([span.policy_version for span, _, _ in chosen]), lengths),
    )


def join(parts: Sequence[TrainedTokens]) -> TrainedTokens:
    """Join the entries of several samples, one sample after another."""
    return TrainedTokens(*(np.concatenate(column) for column in zip(*parts, strict=True)))
