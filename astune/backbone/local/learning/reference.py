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
    """The model as it is now, before a checkpoint is loaded. An adapter begins as nothing, so there it is the base."""
    return FrozenCopy(loaded) if loaded.adapters is None else WithoutAdapter(loaded)


class WithoutAdapter:
    """The base below the adapter that is trained: it takes no memory."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._loaded = loaded

    @torch.no_grad()
    def logprob(self, batch: MicroBatch) -> torch.Tensor:
        with self._loaded.base_alone():
            return predict(self._loaded.model, batch).logprob


class FrozenCopy:
    """A copy of the weights as they are now, in the precision of sampling."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._model = copy.deepcopy(loaded.sampling_model).eval().requires_grad_(False)

    @torch.no_grad()
    def logprob(self, batch: MicroBatch) -> torch.Tensor:
        return predict(self._model, batch).logprob
