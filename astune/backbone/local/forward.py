"""One forward pass over a micro-batch: the log-probability of every trained token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from astune.backbone.local.batch import MicroBatch

ENTROPY_ROWS = 256
"""Entropy is a figure to look at: computed in small parts, it costs neither memory nor time."""


@dataclass(frozen=True)
class Forward:
    """What the model says of a micro-batch. `logprobs` (p, vocabulary) after each predictor, `logprob` (e,) of the
    tokens that were sampled."""

    logprobs: torch.Tensor
    logprob: torch.Tensor

    def entropy(self, batch: MicroBatch) -> torch.Tensor:
        """Entropy (e,) of what each token was sampled from, without gradient."""
        with torch.no_grad():
            parts = self.logprobs.split(ENTROPY_ROWS)  # type: ignore[no-untyped-call]
            return torch.cat([-(rows.exp() * rows).sum(-1) for rows in parts])[batch.source]


def predict(model: Any, batch: MicroBatch) -> Forward:
    """Log-probabilities under the weights of `model`. To be called within `LoadedModel.training`."""
    output = model(
        input_ids=batch.tokens,
        position_ids=batch.positions,
        use_cache=False,
        logits_to_keep=batch.predictors,
        layout=batch.layout,
    )
    logits = output.logits[0].float()
    if bool((batch.temperatures != 1).any()):
        logits = logits / batch.temperatures[:, None]
    logprobs = torch.log_softmax(logits, dim=-1)
    return Forward(logprobs, logprobs[batch.source, batch.target])
