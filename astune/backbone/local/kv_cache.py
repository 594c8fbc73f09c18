"""The key-value cache of the sampler: one slot per conversation, kept between the turns of an episode.

    slot 3   system tools question answer tool-result ...      length 412, busy
    slot 4   system tools question answer                      length 388, idle: the agent runs a tool

A request takes over whatever prefix of its prompt some slot already holds: in place if that slot is idle and holds
nothing else, by copying otherwise. So a prompt shared by a group is computed once, and a turn costs its new tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from astune.backbone.local.attention import additive_mask, grouped_attention

GROWTH = 256
"""The cache grows by at least so many positions at a time."""


class KVCache:
    """Keys and values, per layer (slots, kv_heads, positions, dim). Slot `s` holds `tokens[s, :lengths[s]]`."""

    def __init__(self, slots: int, dtype: torch.dtype, device: torch.device) -> None:
        self.slots = slots
        self.dtype, self.device = dtype, device
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []
        self.positions = 0
        self.lengths = np.zeros(slots, dtype=np.int64)
        self.tokens = np.zeros((slots, 0), dtype=np.int64)

    def reserve(self, positions: int) -> None:
        """Make room for `positions` tokens in every slot, keeping what is there."""
        if positions <= self.positions:
            return
        grown = max(positions, self.positions + GROWTH)
        self.tokens = np.pad(self.tokens, ((0, 0), (0, grown - self.positions)))
        for store in (self.keys, self.values):
            for layer, old in enumerate(store):
                new = old.new_zeros((*old.shape[:2], grown, old.shape[3]))
                new[:, :, : self.positions] = old
                store[layer] = new
        self.positions = grown

    def layer(self, index: int, key: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of one layer; the first use fixes the number of heads and their size."""
        while len(self.keys) <= index:
            shape = (self.slots, key.shape[1], self.positions, key.shape[3])
            self.keys.append(torch.zeros(shape, dtype=self.dtype, device=self.device))
            self.values.append(torch.zeros(shape, dtype=self.dtype, device=self.device))
        return self.keys[index], self.values[index]

    def shared_prefixes(self, prompt: np.ndarray) -> np.ndarray:
        """Count for each slot the leading tokens of `prompt` that it holds; int array (slots,)."""
        width = min(len(prompt), self.positions)
        differs = self.tokens[:, :width] != prompt[:width]
        first = np.where(differs.any(axis=1), differs.argmax(axis=1), width) if width else np.zeros(self.slots, int)
        return np.minimum(first, self.lengths)

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        for store in (*self.keys, *self.values):
            store[target, :, :length] = store[source, :, :length]
        self.tokens[target, :length] = self.tokens[source, :length]
        self.lengths[target] = length

    def wipe(self, slot: int) -> None:
        """Empty a slot down to its keys and values: masked ones count 0 times what they are, which is no number where
        they are none."""
        self.lengths[slot] = 0
        for store in (*self.keys, *self.values):
            store[slot] = 0

    def append(self, slot: int, ids: Sequence[int] | np.ndarray) -> None:
        """Note that the keys of `ids` now stand after what the slot held."""
        start = self.lengths[slot]
        self.tokens[slot, start : start + len(ids)] = ids
        self.lengths[slot] = start + len(ids)

    def append_each(self, slots: Sequence[int], ids: Sequence[int]) -> None:
        """Note one more token in each of `slots`."""
        self.tokens[slots, self.lengths[slots]] = ids
        self.lengths[slots] += 1

    def clear(self) -> None:
        """Forget everything: the weights changed."""
        self.lengths[:] = 0


class CacheLayout:
    """New tokens of some slots, each row behind what its slot holds.

    `rows` are the slots (a slice from 0 gives views, no copy; an index tensor gathers). `starts[i]` is the position
    of the first new token of row i; every row has the same number of new tokens, padding at the end included.
    Padding writes keys behind the valid ones of its own slot, where the next real token overwrites them.
    """

    def __init__(self, cache: KVCache, rows: slice | torch.Tensor, starts: torch.Tensor, new_tokens: int) -> None:
        self.cache, self.rows = cache, rows
        device = cache.device
        index = torch.arange(cache.slots, device=device)[rows] if isinstance(rows, slice) else rows
        self._index = index[:, None]
        self.positions = starts[:, None] + torch.arange(new_tokens, device=device)
        self.width = int(self.positions.max()) + 1
        seen = torch.arange(self.width, device=device)
        self._seen = (seen[None, None, :] <= self.positions[:, :, None])[:, None]
        self._mask: torch.Tensor | None = None

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float
    ) -> torch.Tensor:
        keys, values = self.cache.layer(layer, key)
        keys[self._index, :, self.positions] = key.transpose(1, 2).to(keys.dtype)
        values[self._index, :, self.positions] = value.transpose(1, 2).to(values.dtype)
        known, content = keys[self.rows, :, : self.width], values[self.rows, :, : self.width]
        if self._mask is None:
            self._mask = additive_mask(self._seen, query, key)
        return grouped_attention(query, known, content, self._mask, scaling)
