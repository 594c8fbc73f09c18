"""The sampler's cache for models that the key-value cache with slots cannot serve: transformers' own, one per slot.

A layer of linear attention keeps a state that has taken in all tokens so far, not one thing per token. So a slot is of
use to a prompt only with all that it holds, and each conversation is computed by itself, in a batch of one.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from astune.backbone.local.model.adapters import Adapters
from astune.backbone.local.sampling.slots import Slots
from astune.backbone.lora.settings import SOLE
from astune.errors import ModelError

ATTENTION_STATE = "past_key_values"
STATE_NAMES = (ATTENTION_STATE, "cache_params")
"""Names of the cache that models take and give, with attention and without."""
GROWTH = 256
"""Room for token ids grows by at least so many at a time."""


class StateCache(Slots):
    """`states[s]` is what the model keeps of the first `taken_in[s]` tokens of slot `s`. Where that is not all that the
    slot holds, as after an error half-way, or after the slot was given to another conversation, it is made anew; so it
    is for several tokens at once of a model that does not continue its state with more than one (Mamba's scan)."""

    def __init__(
        self, model: Any, slots: int, device: torch.device, *, continues: bool, adapters: Adapters | None = None
    ) -> None:
        super().__init__(slots, adapters)
        self.device, self.continues = device, continues
        self.states: list[Any] = [None] * slots
        self.taken_in = [0] * slots
        self._name = state_name(model)

    def count_shared(self, prompt: np.ndarray, owner: str = SOLE) -> np.ndarray:
        """Count for each slot the leading tokens of `prompt` that it holds of an adapter; 0 if it holds any other."""
        shared = super().count_shared(prompt, owner)
        return np.where(shared == self.lengths, shared, 0)

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        self.states[target] = copy.deepcopy(self.states[source]) if length else None
        self.taken_in[target] = self.taken_in[source] if length else 0
        super().copy_prefix(source, target, length)

    def wipe(self, slot: int) -> None:
        super().wipe(slot)
        self.states[slot], self.taken_in[slot] = None, 0

    def clear(self, owner: str = SOLE) -> np.ndarray:
        held = super().clear(owner)
        for slot in held:
            self.wipe(slot)
        return held

    def extend(self, model: Any, slots: Sequence[int], texts: Sequence[np.ndarray]) -> None:
        """Take in `texts`, each behind what its slot holds."""
        for slot, text in zip(slots, texts, strict=True):
            self._take_in(model, slot, text)
            self.append(slot, text)

    def step(self, model: Any, pending: Mapping[int, int]) -> torch.Tensor:
        """Take in one token for each slot of `pending`; logits (n, vocabulary) after them. The caller notes the
        tokens, as soon as the logits are used."""
        return torch.cat([self._take_in(model, slot, np.array([token])) for slot, token in pending.items()])

    def _take_in(self, model: Any, slot: int, ids: np.ndarray) -> torch.Tensor:
        held = int(self.lengths[slot])
        end = held + len(ids)
        if end + 1 > self.positions:
            self.widen(max(end + 1, self.positions + GROWTH))
        if held == 0 or self.taken_in[slot] != held or (len(ids) > 1 and not self.continues):
            self.states[slot], ids = None, np.concatenate([self.tokens[slot, :held], ids])
        self.taken_in[slot] = -1  # a model that fails may have changed its state before
        tokens = torch.as_tensor(ids, device=self.device)[None]
        given = {self._name: self.states[slot]}
        if self._name == ATTENTION_STATE:  # some count their positions by the mask
            given["attention_mask"] = torch.ones((1, end), dtype=torch.long, device=self.device)
        with self.using([slot]):
            output = model(input_ids=tokens, use_cache=True, logits_to_keep=1, **given)
        self.states[slot], self.taken_in[slot] = output[self._name], end
        logits: torch.Tensor = output.logits[:, -1]
        return logits


def state_name(model: Any) -> str:
    """The keyword by which `model` takes its cache. Raises ModelError where it takes none that is known."""
    taken = inspect.signature(model.forward).parameters
    name = next((name for name in STATE_NAMES if name in taken), None)
    if name is None:
        raise ModelError(f"{type(model).__name__} takes no cache by any of the names {', '.join(STATE_NAMES)}")
    return name
