"""Log-probabilities under weights that stay: those the run began with."""

from __future__ import annotations

import copy
from typing import Protocol

import torch

from astune.backbone.local.batch import MicroBatch
from astune.backbone.local.forward import predict
from astune.backbone.local.model import LoadedModel


class Reference(Protocol):
    def logprob(self, batch: MicroBatch) -> torch.Tensor:
        """Log-probability (e,) of every trained token, at its temperature, without gradient. To be called within
        `LoadedModel.training`."""


class FrozenCopy:
    """A copy of the weights as they are now, in the precision of sampling."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._model = copy.deepcopy(loaded.sampling_model).eval().requires_grad_(False)

    @torch.no_grad()
    def logprob(self, batch: MicroBatch) -> torch.Tensor:
        return predict(self._model, batch).logprob
