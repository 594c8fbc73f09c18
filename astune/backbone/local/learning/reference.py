"""Log-probabilities under weights that stay: those the run began with."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch

from astune.backbone.local.learning.batch import MicroBatch, micro_batches
from astune.backbone.local.learning.forward import predict
from astune.backbone.local.model.model import LoadedModel
from astune.types import Sample

Reference: TypeAlias = Callable[[MicroBatch], torch.Tensor]
"""Gives the log-probability (e,) of every trained token, at its temperature, without gradient. To be called within
`LoadedModel.training`."""


def reference_of(loaded: LoadedModel) -> Reference:
    """The model as it is now, before a checkpoint is loaded. A new adapter begins as nothing: there it is the base."""
    if loaded.adapters is None:
        return partial(score, copy.deepcopy(loaded.sampling_model).eval().requires_grad_(False))
    if not loaded.begun:
        return partial(score_by_base, loaded)
    return partial(score_by_former_adapter, loaded, [value.detach().clone() for value in loaded.trainable()])


@torch.no_grad()
def score(model: Any, batch: MicroBatch) -> torch.Tensor:
    """By the weights of `model` as they are."""
    return predict(model, batch).logprob


def score_samples(
    loaded: LoadedModel, samples: Sequence[Sample], most_tokens: int, compute: Reference | None = None
) -> list[Sequence[float]]:
    """The log-probabilities of each sample's tokens with weight, by `compute`, or by the weights that are trained."""
    compute = compute or partial(score, loaded.model)
    found: list[Sequence[float]] = [()] * len(samples)
    for batch in micro_batches(samples, most_tokens, loaded.device, loaded.family.layout):
        with loaded.training():
            logprob = compute(batch)
        for row, number in enumerate(batch.samples):
            found[number] = logprob[batch.row == row].tolist()
    return found


def score_by_base(loaded: LoadedModel, batch: MicroBatch) -> torch.Tensor:
    """By the base below the adapter that is trained: it takes no memory."""
    with loaded.base_alone():
        return score(loaded.model, batch)


def score_by_former_adapter(loaded: LoadedModel, former: list[torch.Tensor], batch: MicroBatch) -> torch.Tensor:
    """By the base with the values that the adapter had, which stand in the place of the trained ones meanwhile."""

    def swap() -> None:
        """Exchange the tensors and copy nothing: an optimizer, and what a backward pass has kept, do not notice."""
        for place, parameter in enumerate(loaded.trainable()):
            parameter.data, former[place] = former[place], parameter.data

    swap()
    try:
        return score(loaded.model, batch)
    finally:
        swap()
