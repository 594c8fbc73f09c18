"""The tokens that each slot of the sampler holds, whatever a cache keeps of them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np

from astune.backbone.local.model.adapters import Adapters
from astune.backbone.lora.settings import SOLE


class Slots:
    """Slot `s` holds `tokens[s, :lengths[s]]`, computed with the adapter `owners[s]`. Adapters share nothing."""

    def __init__(self, slots: int, adapters: Adapters | None = None) -> None:
        self.slots = slots
        self._adapters = adapters
        self._nobody = SOLE if adapters is None else adapters.names[0]
        self.owners = np.full(slots, self._nobody, dtype=object)
        self.positions = 0
        self.lengths = np.zeros(slots, dtype=np.int64)
        self.tokens = np.zeros((slots, 0), dtype=np.int64)

    def widen(self, positions: int) -> None:
        """Make room for `positions` token ids in every slot, keeping what is there; with less than there was, its
        beginning."""
        self.tokens = np.pad(self.tokens[:, :positions], ((0, 0), (0, max(positions - self.positions, 0))))
        self.positions = positions

    def using(self, slots: Sequence[int]) -> AbstractContextManager[None]:
        """Forward passes in this block have a row for each of `slots`, which is computed with its adapter."""
        return nullcontext() if self._adapters is None else self._adapters.using(*self.owners[list(slots)])

    def count_shared(self, prompt: np.ndarray, owner: str = SOLE) -> np.ndarray:
        """Count for each slot the leading tokens of `prompt` that it holds of an adapter; int array (slots,)."""
        width = min(len(prompt), self.positions)
        differs = self.tokens[:, :width] != prompt[:width]
        first = np.where(differs.any(axis=1), differs.argmax(axis=1), width) if width else np.zeros(self.slots, int)
        return np.where(self.owners == owner, np.minimum(first, self.lengths), 0)

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Let `target` hold the first `length` tokens of `source`."""
        self.tokens[target, :length] = self.tokens[source, :length]
        self.lengths[target] = length

    def wipe(self, slot: int) -> None:
        """Empty a slot and whatever is kept of it."""
        self.lengths[slot] = 0

    def append(self, slot: int, ids: Sequence[int] | np.ndarray) -> None:
        """Note that `ids` now stand after what the slot held."""
        start = self.lengths[slot]
        self.tokens[slot, start : start + len(ids)] = ids
        self.lengths[slot] = start + len(ids)

    def append_each(self, slots: Sequence[int], ids: Sequence[int]) -> None:
        """Note one more token in each of `slots`."""
        self.tokens[slots, self.lengths[slots]] = ids
        self.lengths[slots] += 1

    def clear(self, owner: str = SOLE) -> np.ndarray:
        """Forget everything of an adapter: its weights changed. Returns the slots that held it (n,)."""
        (held,) = np.nonzero(self.owners == owner)
        self.lengths[held] = 0
        self.owners[held] = self._nobody
        return held
