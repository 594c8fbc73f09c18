"""One forward pass over a micro-batch: the log-probability of every trained token.

Logits are by far the largest thing of a model with 150 000 tokens. So they exist for `LOGITS_AT_ONCE` numbers at a time
only: each chunk is computed, reduced to what is needed of it, and computed once more in the backward pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from astune.backbone.local.learning.batch import MicroBatch

LOGITS_AT_ONCE = 2**26
"""Logits in a chunk: 256 MiB in float32, some 440 predictors with a vocabulary of 150 000."""
ENTROPY_ROWS = 256
"""Entropy without a gradient is computed in small parts: it costs neither memory nor time."""


@dataclass(frozen=True)
class Forward:
    """The model's answer to a micro-batch: `logprob` (e,) of the tokens that were sampled, `entropies` (p,) after each
    predictor, at its temperature."""

    logprob: torch.Tensor
    entropies: torch.Tensor

    def entropy(self, batch: MicroBatch) -> torch.Tensor:
        """Entropy (e,) of what each token was sampled from, in nats."""
        return self.entropies[batch.source]


def predict(model: Any, batch: MicroBatch, *, entropy_gradient: bool = False) -> Forward:
    """Log-probabilities under the weights of `model`. To be called within `LoadedModel.training`.

    The entropies have a gradient with `entropy_gradient` only, as that keeps one more tensor of the size of the logits.
    """
    output = last_layer(trunk(model), batch)
    hidden = output.last_hidden_state[:, batch.predictors]
    temperatures = batch.temperatures if batch.heated else None
    rows = max(1, LOGITS_AT_ONCE // int(model.config.get_text_config().vocab_size))
    score = partial(_score, model, type(output), entropy_gradient)
    if len(batch.predictors) <= rows:
        return Forward(*score(hidden, temperatures, batch.source, batch.target))
    chunk_of = torch.div(batch.source, rows, rounding_mode="floor")
    logprobs, entropies, places = [], [], []
    for number, part in enumerate(torch.split(hidden, rows, dim=1)):
        place = (chunk_of == number).nonzero()[:, 0]
        heat = None if temperatures is None else temperatures[number * rows : (number + 1) * rows]
        given = (part, heat, batch.source[place] - number * rows, batch.target[place])
        logprob, entropy = checkpoint(score, *given, use_reentrant=False, preserve_rng_state=False)
        logprobs.append(logprob)
        entropies.append(entropy)
        places.append(place)
    order = torch.cat(places).argsort()
    return Forward(torch.cat(logprobs)[order], torch.cat(entropies))


def last_layer(headless: Any, batch: MicroBatch) -> Any:
    """Call a model without its head; its output has `last_hidden_state` (1, packed, hidden)."""
    if batch.layout is None:
        return headless(input_ids=batch.tokens, use_cache=False)
    return headless(input_ids=batch.tokens, position_ids=batch.positions, use_cache=False, layout=batch.layout)


def trunk(model: Any) -> Any:
    """The part of the model before its head."""
    named = [model.get_decoder(), model.base_model]
    own = [child for child in model.children() if isinstance(child, PreTrainedModel)]
    return next((part for part in named + own if part is not model), model)


def _score(
    model: Any,
    output_type: type,
    entropy_gradient: bool,
    hidden: torch.Tensor,
    temperatures: torch.Tensor | None,
    source: torch.Tensor,
    target: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability of `target` (k,) after row `source` (k,) of `hidden` (1, n, width); entropy (n,) of each row."""
    logits = head(model, output_type, hidden)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if temperatures is not None:
        logits = logits / temperatures[:, None]
    logprobs = torch.log_softmax(logits, dim=-1)
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        parts = torch.split(logprobs, len(logprobs) if entropy_gradient else ENTROPY_ROWS)
        entropies = torch.cat([-(rows.exp() * rows).sum(-1) for rows in parts])
    return logprobs[source, target], entropies


def head(model: Any, output_type: type, hidden: torch.Tensor) -> torch.Tensor:
    """Logits (n, vocabulary) of what the last layer gave, `hidden` (1, n, width), by the model's own code: some scale
    or cap them. `output_type` is what `trunk(model)` returns."""
    with _returning(trunk(model), output_type(last_hidden_state=hidden)):
        logits: torch.Tensor = model(input_ids=hidden.new_zeros((1, 1), dtype=torch.long), use_cache=False).logits[0]
    return logits


@contextmanager
def _returning(module: Any, output: Any) -> Iterator[None]:
    """Let `module` return `output` in the place of computing anything."""
    own = vars(module).get("forward")  # whoever wrapped it before
    module.forward = lambda *_, **__: output
    try:
        yield
    finally:
        del module.forward
        if own is not None:
            module.forward = own
