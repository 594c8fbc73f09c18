"""The key-value cache of the sampler: one slot per conversation, kept between the turns of an episode.

    slot 3   system tools question answer tool-result ...      length 412, busy
    slot 4   system tools question answer                      length 388, idle: the agent runs a tool

A request takes over whatever prefix of its prompt some slot already holds: in place if that slot is idle and holds
nothing else, by copying otherwise. So a prompt shared by a group is computed once, and a turn costs its new tokens.
"""

from __future__ import annotations

import math
import mmap
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from astune.backbone.local.model.adapters import Adapters
from astune.backbone.local.model.attention import Rule, additive_mask, attend_in_groups, can_merge
from astune.backbone.local.model.decoder import Decoder, find_decoder
from astune.backbone.local.model.flash import attend_to_slots, uses_flash
from astune.backbone.local.process import KEPT
from astune.backbone.local.sampling.shared_keys import PrefixGroups, StepKeys
from astune.backbone.local.sampling.slots import Slots
from astune.backbone.local.sampling.step_graphs import IDLE_ROWS, ROWS, WIDTH, StepGraphs, round_up
from astune.backbone.lora.settings import SOLE

GROWTH = 256
"""The cache grows by at least so many positions at a time."""
TOKENS_AT_ONCE = 2**15
"""Most tokens of prompts in one pass: what layers keep of them meanwhile grows with it."""
SCORES_AT_ONCE = 2**25
"""Most pairs of a new token and a position before it in one pass: its mask has a number for each, and one more for each
query head of a key head."""


class KVCache(Slots):
    """Keys and values, per layer (slots, kv_heads, positions, dim). There is room for the longest conversation in every
    slot; on a CPU the shorter ones take no memory beyond what they hold."""

    def __init__(self, slots: int, dtype: torch.dtype, device: torch.device, adapters: Adapters | None = None) -> None:
        super().__init__(slots, adapters)
        self.dtype, self.device = dtype, device
        self.keys: dict[int, torch.Tensor] = {}
        self.values: dict[int, torch.Tensor] = {}
        self._shared = PrefixGroups(self)
        self._model: Any = None
        self._parameters: tuple[torch.nn.Parameter, ...] = ()
        """Those of the model, listed once and not in every step."""
        self._decoder: Decoder | None = None
        one = adapters is None or len(adapters.names) == 1  # else a graph would be of the adapters of its slots
        self._graphs = StepGraphs() if device.type == "cuda" and one else None

    def reserve(self, positions: int) -> None:
        """Make room for `positions` tokens in every slot, keeping what is there."""
        if positions <= self.positions:
            return
        grown = max(positions, self.positions + GROWTH)
        for store in (self.keys, self.values):
            for layer, old in store.items():
                store[layer] = self._lengthen(old, grown)
        self.widen(grown)

    def _lengthen(self, old: torch.Tensor, positions: int) -> torch.Tensor:
        new = zeros((*old.shape[:2], positions, old.shape[3]), self.dtype, self.device)
        if self.device.type == "cpu":  # what nobody holds is not touched
            for slot, held in enumerate(self.lengths):
                new[slot, :, :held] = old[slot, :, :held]
        else:
            new[:, :, : self.positions] = old[:, :, : self.positions]  # longer where memory ran out half-way
        return new

    def clear(self, owner: str = SOLE) -> np.ndarray:
        """Forget everything of an adapter: its weights changed. Once nobody holds anything a large cache gives its
        memory back; a small one keeps it: to get it page by page again is a twentieth of a step."""
        held = super().clear(owner)
        self._shared.clear()
        if self._decoder is not None:
            self._decoder.renew()
        taken = sum(store.nbytes for store in (*self.keys.values(), *self.values.values()))
        if not self.lengths.any() and taken > KEPT:
            self.keys.clear()
            self.values.clear()
            self.widen(0)
        return held

    def layer(self, index: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of one layer; the first use fixes the number of heads and their sizes."""
        for store, states in ((self.keys, key), (self.values, value)):
            if index not in store:
                shape = (self.slots, states.shape[1], self.positions, states.shape[3])
                store[index] = zeros(shape, self.dtype, self.device)
        return self.keys[index], self.values[index]

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        for store in (*self.keys.values(), *self.values.values()):
            store[target, :, :length] = store[source, :, :length]
        super().copy_prefix(source, target, length)

    def wipe(self, slot: int) -> None:
        """Empty a slot down to its keys and values: masked ones count 0 times what they are, which is no number where
        they are none."""
        super().wipe(slot)
        self._shared.leave_alone(slot)
        with torch.inference_mode():  # as they were made
            for store in (*self.keys.values(), *self.values.values()):
                store[slot] = 0

    def extend(self, model: Any, slots: Sequence[int], texts: Sequence[np.ndarray]) -> None:
        """Compute keys and values of `texts`, each behind what its slot holds; none is longer than the last. Long ones
        are cut into pieces, one pass each."""
        done = 0
        ends = [int(self.lengths[slot]) + len(text) for slot, text in zip(slots, texts, strict=True)]
        self.reserve(max(ends) + 1)  # once, and not with each piece
        while rest := [(slot, text[done:]) for slot, text in zip(slots, texts, strict=True) if len(text) > done]:
            own = [slot for slot, _ in rest]
            # most tokens t for each of n slots in one pass: those with n t and n t (held + t) within the limits
            held, rows = int(self.lengths[own].max()), len(own)
            scores = int((math.sqrt(held**2 + 4 * SCORES_AT_ONCE / rows) - held) / 2)
            size = max(1, min(TOKENS_AT_ONCE // rows, scores))
            pieces = [text[:size] for _, text in rest]
            ids = np.zeros((rows, len(pieces[-1])), np.int64)
            for row, piece in enumerate(pieces):
                ids[row, : len(piece)] = piece
            self._keep(model, ids, own)
            for slot, piece in zip(own, pieces, strict=True):
                self.append(slot, piece)
            done += size

    def step(self, model: Any, pending: Mapping[int, int]) -> torch.Tensor:
        """Compute one token for each slot of `pending`, which are in order; logits (n, vocabulary) after them. What
        other slots hold stays as it is. The caller notes the tokens, as soon as the logits are used."""
        running = list(pending)
        rows = running[-1] + 1
        if self._graphs is not None:
            rows = round_up(rows, min(ROWS, rows), self.slots)
        dense = (2 if self._graphs is None else IDLE_ROWS) * len(running) >= rows
        slots = list(range(rows)) if dense else running
        if self._graphs is not None and dense and not self._is_hooked(model):
            logits = self._replay(self._graphs, model, pending, rows)
        else:
            layout = self._make_layout(running, 1, rows if dense else None)
            if self.device.type == "cpu":
                layout.grouped = self._shared.step(running, slots, self.keys, self.values)
            tokens = torch.as_tensor(np.array([[pending.get(slot, 0)] for slot in slots]), device=self.device)
            owners = [slot if slot in pending else running[0] for slot in slots]  # of an idle row: any that runs
            logits = self._compute_logits(model, tokens, owners, layout)
        return logits if len(running) == len(slots) else logits[running]

    def _replay(self, graphs: StepGraphs, model: Any, pending: Mapping[int, int], rows: int) -> torch.Tensor:
        """Compute a step of the slots before `rows` by the graph of its size."""
        running = list(pending)
        longest = int(self.lengths[running].max()) + 1
        self.reserve(longest + 1)
        numbers = np.zeros((3, rows, 1), np.int64)
        numbers[0, running, 0] = list(pending.values())
        numbers[1:, :, 0] = self._find_places(running, rows)

        def compute(numbers: torch.Tensor, width: int) -> torch.Tensor:
            layout = CacheLayout(self, slice(0, rows), numbers[1], numbers[2], width)
            return self._compute_logits(model, numbers[0], range(rows), layout)

        width = round_up(longest, WIDTH, self.positions)
        return graphs.step(compute, numbers, width, self._list_addresses(model), self.device)

    def _list_addresses(self, model: Any) -> tuple[int, ...]:
        """List the places in memory of what a step reads and writes."""
        if (decoder := self._get_decoder(model)) is not None:
            decoder.refresh()
        tensors = (*self._parameters, *self.keys.values(), *self.values.values())
        return tuple(tensor.data_ptr() for tensor in tensors)

    def _compute_logits(
        self, model: Any, tokens: torch.Tensor, slots: Sequence[int], layout: CacheLayout
    ) -> torch.Tensor:
        if (decoder := self._get_decoder(model)) is not None:
            return decoder.forward(tokens, layout.positions, layout)
        return self._call_model(model, tokens, slots, layout)

    def _keep(self, model: Any, ids: np.ndarray, slots: Sequence[int]) -> None:
        """Compute keys and values of new tokens `ids` (n, t), each row behind what its slot holds."""
        layout = self._make_layout(slots, ids.shape[1])
        tokens = torch.as_tensor(ids, device=self.device)
        if (decoder := self._get_decoder(model)) is not None:
            decoder.keep(tokens, layout.positions, layout)
        else:
            self._call_model(model, tokens, slots, layout)

    def _make_layout(self, slots: Sequence[int], new_tokens: int, rows: int | None = None) -> CacheLayout:
        """Lay out new tokens in `slots`; with `rows` the slots before that number are rows too, of which nothing is
        kept."""
        starts = self.lengths[list(slots)]
        self.reserve(int(starts.max()) + new_tokens + 1)
        new, width = torch.arange(new_tokens, device=self.device), int(starts.max()) + new_tokens
        if self.device.type == "cuda" and new_tokens == 1:  # cuDNN prepares a kernel anew for each width
            width = round_up(width, WIDTH, self.positions)
        if rows is None:
            positions = torch.as_tensor(starts, device=self.device)[:, None] + new
            return CacheLayout(self, torch.tensor(slots, device=self.device), positions, positions, width)
        begins, places = torch.as_tensor(self._find_places(slots, rows), device=self.device)[:, :, None] + new
        return CacheLayout(self, slice(0, rows), begins, places, width)

    def _find_places(self, slots: Sequence[int], rows: int) -> np.ndarray:
        """Positions of the next token in each slot before `rows`, and where its keys are written (2, rows): for those
        not in `slots` where nothing ever stands."""
        found = np.zeros((2, rows), np.int64)
        found[1] = self.positions - 1
        found[:, slots] = self.lengths[slots]
        return found

    def _call_model(self, model: Any, tokens: torch.Tensor, slots: Sequence[int], layout: CacheLayout) -> torch.Tensor:
        with self.using(slots):
            logits: torch.Tensor = model(
                input_ids=tokens, position_ids=layout.positions, use_cache=False, logits_to_keep=1, layout=layout
            ).logits
        return logits[:, -1]

    def _is_hooked(self, model: Any) -> bool:
        """True if a hook on a module has to be called in each pass."""
        return self._get_decoder(model) is None and self._decoder is not None

    def _get_decoder(self, model: Any) -> Decoder | None:
        if self._model is not model:
            self._decoder = find_decoder(model) if self._adapters is None else None
            self._model, self._parameters = model, tuple(model.parameters())
        return self._decoder if self._decoder is not None and not self._decoder.hooked else None


def zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """On a CPU under Linux the memory of each page is taken when something is first written to it, and not before."""
    if device.type != "cpu" or sys.platform != "linux":
        return torch.zeros(shape, dtype=dtype, device=device)
    size = math.prod(shape) * dtype.itemsize
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)  # or a page would be as large as a short conversation
    return torch.frombuffer(memory, dtype=dtype).view(tuple(shape))


class CacheLayout:
    """New tokens of some slots, each row behind what its slot holds.

    `rows` are the slots (a slice from 0 gives views, no copy; an index tensor gathers). Row i has new tokens at
    `positions[i]` (n, t), whose keys are written at `places[i]`; the longest row has `width` tokens with them, known to
    the host, so that nothing is read back from a GPU. Every row has the same number of new tokens, padding at the end
    included. Padding writes keys behind the valid ones of its own slot, where the next real token overwrites them.
    """

    def __init__(
        self, cache: KVCache, rows: slice | torch.Tensor, positions: torch.Tensor, places: torch.Tensor, width: int
    ) -> None:
        self.cache, self.rows, self.positions, self.width = cache, rows, positions, width
        self._index = torch.arange(rows.stop, device=cache.device) if isinstance(rows, slice) else rows
        self._places = places
        self.grouped: StepKeys | None = None
        """The same keys in two parts, for layers that can."""
        self._masks: dict[tuple[int | None, int], torch.Tensor] = {}
        self._written: dict[int, torch.Tensor] = {}
        """The places (n heads t,) of the new tokens' keys among those of all slots, heads and positions, by the number
        of heads."""

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rule: Rule
    ) -> torch.Tensor:
        keys, values = self.keep(layer, key, value)
        if query.shape[2] > 1 and uses_flash(query, value, rule):  # one query is not worth a kernel that has no mask
            return attend_to_slots(query, keys, values, self._index, self.positions[:, -1] + 1, rule)
        if self.grouped is not None and can_merge(query, value, rule):
            behind = slice(self.grouped.begin, self.grouped.width)
            return self.grouped.attend(
                layer, query, keys[self.rows, :, behind], values[self.rows, :, behind], rule.scaling
            )
        known, content = keys[self.rows, :, : self.width], values[self.rows, :, : self.width]
        case = rule.window, query.shape[1] // key.shape[1]
        if case not in self._masks:
            self._masks[case] = additive_mask(self._mark_seen(rule.window), query, key)
        return attend_in_groups(query, known, content, self._masks[case], rule)

    def keep(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Write keys and values of the new tokens; what the cache has of the layer."""
        keys, values = self.cache.layer(layer, key, value)
        _, heads, positions, _ = keys.shape
        if heads not in self._written:
            own = torch.arange(heads, device=self._index.device)[:, None]
            rows = self._index[:, None, None] * heads + own
            self._written[heads] = (rows * positions + self._places[:, None]).flatten()
        places = self._written[heads]
        keys.view(-1, keys.shape[3]).index_copy_(0, places, key.to(keys.dtype).reshape(-1, keys.shape[3]))
        values.view(-1, values.shape[3]).index_copy_(0, places, value.to(values.dtype).reshape(-1, values.shape[3]))
        return keys, values

    def _mark_seen(self, window: int | None) -> torch.Tensor:
        """Mark (n, 1, q, k) the positions up to the query's own, the last `window` of them."""
        stands = torch.arange(self.width, device=self._index.device)
        positions = self.positions[:, :, None]
        seen = stands <= positions
        return (seen if window is None else seen & (stands > positions - window))[:, None]
