"""A model under training, or an adapter over one: gradients that add up until a step of AdamW, and what is saved.

`LocalLearner` cannot stand here: it takes the samples of one update at once, whose targets are the tokens that were
sampled. A client of the protocol sends rows with targets and weights of its own, over several requests, reads the
log-probabilities back, and sets AdamW anew for every step.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from astune.backbone.local.model.model import LoadedModel, save_model
from astune.errors import ModelError
from astune.tinker_server.lora import is_adapter
from astune.tinker_server.requests import RequestBody, RequestError
from astune.tinker_server.rows import TargetRow, logits_of, most_tokens, row_batches, target_logprobs

logger = logging.getLogger(__name__)

OPTIMIZER_FILE = "optimizer.pt"
MOST_ADAM = 1e30
"""Greatest of the values of a step; float32 ends at 3e38."""


@dataclass(frozen=True)
class AdamStep:
    """One step of AdamW (arXiv 1711.05101). `grad_clip_norm` 0 leaves the gradient as long as it is.

    Raises RequestError for values that would end every weight as no number."""

    learning_rate: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    grad_clip_norm: float

    def __post_init__(self) -> None:
        values = RequestBody(asdict(self))
        for name in values:
            value = values.number(name)
            below_1 = name.startswith("beta")
            if value < 0 or (below_1 and value >= 1) or (name == "eps" and value == 0) or value > MOST_ADAM:
                expected = "from 0 to below 1" if below_1 else f"from 0 to {MOST_ADAM:g}"
                raise RequestError(f"adam_params.{name} is {value:g}; expected {expected}{', not 0' * (name == 'eps')}")


class TrainedModel:
    """Trains the adapter of `loaded`, or all weights of `loaded.model`. `temperature` divides the logits, in every
    log-probability and gradient.

    One thread at a time may call it.
    """

    def __init__(self, loaded: LoadedModel, temperature: float, micro_batch_tokens: int | None = None) -> None:
        self._loaded = loaded
        self._temperature = temperature
        most = most_tokens(loaded.model.config.get_text_config().vocab_size)
        self._limit = min(most, micro_batch_tokens or most)
        self._optimizer = torch.optim.AdamW(loaded.trainable())

    def forward(self, rows: Sequence[TargetRow], *, backward: bool) -> tuple[list[np.ndarray], float]:
        """The log-probabilities of the targets of each row, and the loss: minus their sum, weighted. With `backward`
        the gradient of the loss is added to what is there; if that fails, all gradient is thrown away."""
        try:
            return self._forward(rows, backward)
        except Exception:
            self._optimizer.zero_grad(set_to_none=True)
            raise

    def _forward(self, rows: Sequence[TargetRow], backward: bool) -> tuple[list[np.ndarray], float]:
        found: list[np.ndarray] = [np.zeros(0, np.float32)] * len(rows)
        total = 0.0
        for batch in row_batches(rows, self._limit, self._loaded.device):
            with torch.set_grad_enabled(backward), self._loaded.training():
                logprobs = target_logprobs(logits_of(self._loaded.model, batch, self._temperature), batch)
                loss = -(logprobs * batch.weights).sum()
                if backward:
                    loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
            parts = np.split(logprobs.detach().cpu().numpy(), np.cumsum(batch.lengths)[:-1])
            for row, part in zip(batch.numbers, parts, strict=True):
                found[row] = part
        return found, total

    def step(self, adam: AdamStep) -> dict[str, float]:
        """Take one step along the gradient and forget it. A gradient that is not finite is only forgotten: weights and
        the state of the optimizer stay, `skipped` is 1 and there is no `grad_norm`, as JSON cannot write it."""
        parameters = [weight for weight in self._loaded.trainable() if weight.grad is not None]
        if not parameters:
            raise RequestError("optim_step without a forward_backward since the last one: there is no gradient")
        for group in self._optimizer.param_groups:
            group["lr"], group["betas"] = adam.learning_rate, (adam.beta1, adam.beta2)
            group["eps"], group["weight_decay"] = adam.eps, adam.weight_decay
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, adam.grad_clip_norm or math.inf))
        finite = math.isfinite(norm)
        if finite:
            self._optimizer.step()
        else:
            logger.warning("optim_step skipped: the gradient is not finite")
        self._optimizer.zero_grad(set_to_none=True)
        return {"grad_norm": norm, "skipped": 0.0} if finite else {"skipped": 1.0}

    def save(self, directory: Path, *, optimizer: bool) -> None:
        """A Hugging Face folder, of an adapter as peft has it; with the state of the optimizer beside it, if asked
        for."""
        save_model(self._loaded, directory)
        if optimizer:
            torch.save(self._optimizer.state_dict(), directory / OPTIMIZER_FILE)

    def load(self, folder: Path, *, optimizer: bool) -> None:
        """Take over the weights of a checkpoint of the same model and, if asked for, the state of the optimizer beside
        them; else the optimizer begins anew. Gradient is forgotten."""
        if is_adapter(folder) != (self._loaded.adapters is not None):
            kinds = ("all weights (rank 0)", "an adapter")
            raise RequestError(
                f"the checkpoint holds {kinds[is_adapter(folder)]}, and this model trains "
                f"{kinds[self._loaded.adapters is not None]}: create a training client from the state instead"
            )
        try:
            with torch.no_grad():
                self._loaded.load_weights(folder)
        except (RuntimeError, ModelError) as error:
            raise RequestError(f"the checkpoint is of another model: {error}") from error
        self._optimizer = torch.optim.AdamW(self._loaded.trainable())
        self._optimizer.zero_grad(set_to_none=True)
        if optimizer:
            state = torch.load(folder / OPTIMIZER_FILE, map_location=self._loaded.device, weights_only=True)
            self._optimizer.load_state_dict(state)
