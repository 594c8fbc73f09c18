"""Log-probabilities under weights that stay: those the run began with."""

from __future__ import annotations

import copy
from typing import Protocol

import torch

from astune.backbone.local.learning.batch import MicroBatch
from astune.backbone.local.learning.forward import predict
from astune.backbone.local.model.model import LoadedModel


class Reference(Protocol):
    def logprob(self, batch: MicroBatch) -> torch.Tensor:
        """Log-probability (e,) of every trained token, at its temperature, without gradient. To be called within
        `LoadedModel.training`."""


def reference_of(loaded: LoadedModel) -> Reference:
    """The model as it is now, before a checkpoint is loaded. A new adapter begins as nothing: there it is the base."""
    if loaded.adapters is None:
        return FrozenCopy(loaded)
    return FormerAdapter(loaded) if loaded.begun else WithoutAdapter(loaded)


class WithoutAdapter:
    """The base below the adapter that is trained: it takes no memory."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._loaded = loaded

    @torch.no_grad()
    def logprob(self, batch: MicroBatch) -> torch.Tensor:
        with self._loaded.base_alone():
            return predict(self._loaded.model, batch).logprob


class FormerAdapter:
    """The base with a copy of the adapter as it is now, which stands in the place of the trained one meanwhile."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._loaded = loaded
        self._values = [parameter.detach().clone() for parameter in loaded.trainable()]

    @torch.no_grad()
    def logprob(self, batch: MicroBatch) -> torch.Tensor:
        self._swap()
        try:
            return predict(self._loaded.model, batch).logprob
        finally:
            self._swap()

    def _swap(self) -> None:
        """Exchange the tensors and copy nothing: an optimizer, and what a backward pass has kept, do not notice."""
        for place, parameter in enumerate(self._loaded.trainable()):
            parameter.data, self._values[place] = self._values[place], parameter.data


class FrozenCopy:
    """A copy of the weights as they are now, in the precision of sampling."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._model = copy.deepcopy(loaded.sampling_model).eval().requires_grad_(False)

    @torch.no_grad()
    def logprob(self, batch: MicroBatch) -> torch.Tensor:
        return predict(self._model, batch).logprob
