"""Attention of the next token where conversations begin alike, on a CPU: keys that several of them hold are read once.

    slot 0   system tools question | answer a        the keys before the bar stand once in a copy, and all queries of
    slot 1   system tools question | answer b        the group read it as one product; what is behind the bar each
    slot 2   system tools question | answer c        reads for itself

The two parts are merged by their sums of exponentials, as those of a tree in training are: together they are the
softmax over the whole conversation. A slot that shares nothing is a group by itself.

Nothing has to be told of what slots do: a copy is used for a slot whose tokens and adapter are those that it was made
of, and otherwise the groups are formed anew.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import torch

from astune.backbone.local.learning.prefix_tree import common_prefix
from astune.backbone.local.model.attention import additive_mask
from astune.backbone.local.sampling.slots import Slots

LEAST_SHARED = 32
"""Tokens that a group has in common at least: what it costs to merge two parts."""
LEAST_SAVED = 2**18
"""Numbers that a layer must not have to read in a step for the sake of groups: below that merging costs as much."""
WORTH = 0.7
"""Most positions that are read in groups, of those that are read otherwise."""

_attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


Store: TypeAlias = Mapping[int, torch.Tensor]
"""Keys or values of all slots by layer, each (slots, key heads, positions, dim)."""


@dataclass(frozen=True)
class PrefixGroup:
    """Slots whose first `length` tokens are the same, with the same adapter."""

    slots: tuple[int, ...]
    length: int


@dataclass(frozen=True)
class _Part:
    """Slots that follow one another in order; `saved` tokens need not be read if they are in `groups`."""

    slots: tuple[int, ...]
    saved: int
    groups: tuple[PrefixGroup, ...]


def find_groups(held: Slots, slots: Sequence[int]) -> list[PrefixGroup]:
    """Every one of `slots` in one group, so that few tokens have to be read: no fewer are saved than by any groups of
    all that begin alike. One that is alone has the length of the shortest group, or its own if that is less."""
    order = sorted(slots, key=lambda slot: (str(held.owners[slot]), _read_text(held, slot).tobytes()))
    if not order:
        return []
    common = [_count_common(held, one, other) for one, other in pairwise(order)]
    open_parts: list[tuple[int, list[_Part]]] = []
    """What has so many tokens in common, growing, as far as it is known."""
    for slot, after in zip(order, [*common, -1], strict=True):
        part = _Part((slot,), 0, (PrefixGroup((slot,), 0),))
        while open_parts and open_parts[-1][0] > after:
            length, parts = open_parts.pop()
            part = _join_best(length, [*parts, part])
        if open_parts and open_parts[-1][0] == after:
            open_parts[-1][1].append(part)
        else:
            open_parts.append((after, [part]))
    groups = open_parts[0][1][0].groups
    shortest = min((group.length for group in groups if group.length), default=0)
    return [
        group if group.length else PrefixGroup(group.slots, min(shortest, int(held.lengths[group.slots[0]])))
        for group in groups
    ]


def _join_best(length: int, parts: Sequence[_Part]) -> _Part:
    """Join the `parts` that save more tokens as one group with `length` tokens in common; leave the others as they
    are."""
    joined = [part for part in parts if len(part.slots) * length > part.saved]
    group = tuple(slot for part in joined for slot in part.slots)
    gain = (len(group) - 1) * length - sum(part.saved for part in joined)
    if length < LEAST_SHARED or gain <= 0:
        joined, gain = [], 0
    groups = tuple(one for part in parts if part not in joined for one in part.groups)
    return _Part(
        tuple(slot for part in parts for slot in part.slots),
        sum(part.saved for part in parts) + gain,
        (*groups, PrefixGroup(group, length)) if joined else groups,
    )


def _read_text(held: Slots, slot: int) -> np.ndarray:
    return held.tokens[slot, : held.lengths[slot]]


def _count_common(held: Slots, one: int, other: int) -> int:
    """Tokens that two begin with."""
    return (
        common_prefix(_read_text(held, one), _read_text(held, other)) if held.owners[one] == held.owners[other] else 0
    )


class PrefixGroups:
    """Groups of the slots of `held`, and the keys and values that the slots of each have in common."""

    def __init__(self, held: Slots) -> None:
        # They belong to it: a cycle would keep the weights of an old version in memory until Python looks for cycles.
        self._held: Slots = weakref.proxy(held)
        self._alone: set[int] = set()
        self.clear()

    def clear(self) -> None:
        """Keep nothing: the weights changed."""
        self._alone.clear()
        self._forget()

    def leave_alone(self, slot: int) -> None:
        """Let a slot read its own keys until `clear`: those that it shared may have been no numbers."""
        self._alone.add(slot)
        self._forget()

    def _forget(self) -> None:
        self._groups: list[PrefixGroup] = []
        self._of_slot = np.full(self._held.slots, -1)
        self._copies: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def step(self, running: Sequence[int], rows: Sequence[int], keys: Store, values: Store) -> StepKeys | None:
        """Make the keys that the pending tokens of `running` see, if groups save enough. `rows` are the slots that the
        step has a row for, `running` among them."""
        if len(running) < 2 or not keys:
            return None
        slots = np.array(running)
        if not self._are_known(slots):
            self._form(slots)
        if not self._saves_enough(slots, len(rows), next(iter(keys.values()))):
            return None
        if not self._copies:
            self._form(slots)  # of what the slots hold now, as it is copied
            if not self._saves_enough(slots, len(rows), next(iter(keys.values()))):
                return None
            self._copies = {layer: (self._copy(keys[layer]), self._copy(values[layer])) for layer in keys}
        return StepKeys(self._copies, self._lengths, self._of_slot, self._held.lengths, running, rows)

    def _saves_enough(self, slots: np.ndarray, rows: int, keys: torch.Tensor) -> bool:
        begin, width = int(self._lengths[self._of_slot[slots]].min()), int(self._held.lengths[slots].max()) + 1
        usual, grouped = rows * width, self._tokens.size + rows * (width - begin)
        return begin > 0 and grouped <= WORTH * usual and (usual - grouped) * keys[0, :, 0].numel() >= LEAST_SAVED

    def _are_known(self, slots: np.ndarray) -> bool:
        """Let new slots join the group that they begin like; True if each is in a group then."""
        if not self._groups:
            return False
        groups = self._of_slot[slots]
        for slot in slots[(groups < 0) | ~self._begin_like(slots, groups)].tolist():
            like = np.flatnonzero(self._begin_like(np.full(len(self._groups), slot), np.arange(len(self._groups))))
            like = like[self._shared[like]]
            if slot in self._alone or not len(like):
                return False
            self._of_slot[slot] = like[self._lengths[like].argmax()]
        return True

    def _begin_like(self, slots: np.ndarray, groups: np.ndarray) -> np.ndarray:
        """Tell for each of `slots` (n,) if it holds the tokens that its group, in `groups` (n,), begins with."""
        held, longest = self._held, self._tokens.shape[1]
        same = (held.tokens[slots, :longest] == self._tokens[groups]) | self._beyond[groups]
        found: np.ndarray = (
            same.all(axis=1)
            & (held.lengths[slots] >= self._lengths[groups])
            & (held.owners[slots] == self._owners[groups])
        )
        return found

    def _form(self, running: np.ndarray) -> None:
        """Put `running` into groups, and other slots that begin like another one: their agents may come back."""
        self._forget()
        held = self._held
        others = np.flatnonzero(held.lengths > 0)
        slots = [slot for slot in np.union1d(running, others).tolist() if slot not in self._alone]
        found = find_groups(held, slots) + [PrefixGroup((slot,), 0) for slot in sorted(self._alone)]
        self._groups = [group for group in found if len(group.slots) > 1 or group.slots[0] in running]
        self._lengths = np.array([group.length for group in self._groups])
        self._shared = np.array([len(group.slots) > 1 for group in self._groups])
        self._owners = held.owners[[group.slots[0] for group in self._groups]]
        self._tokens = np.full((len(self._groups), int(self._lengths.max())), -1)
        for number, group in enumerate(self._groups):
            self._tokens[number, : group.length] = held.tokens[group.slots[0], : group.length]
            self._of_slot[list(group.slots)] = number
        self._beyond = self._tokens < 0

    def _copy(self, store: torch.Tensor) -> torch.Tensor:
        """Copy the beginning of each group: (groups, key heads, longest, dim)."""
        copy = store.new_zeros((len(self._groups), store.shape[1], self._tokens.shape[1], store.shape[3]))
        for number, group in enumerate(self._groups):
            copy[number, :, : group.length] = store[group.slots[0], :, : group.length]
        return copy


class StepKeys:
    """The two parts of one step: for each row what its group has in common, from the copies, and what is behind it.
    `lengths` (groups,) tokens of each, `of_slot` (slots,) its group, `held` (slots,) its tokens."""

    def __init__(
        self,
        copies: Mapping[int, tuple[torch.Tensor, torch.Tensor]],
        lengths: np.ndarray,
        of_slot: np.ndarray,
        held: np.ndarray,
        running: Sequence[int],
        rows: Sequence[int],
    ) -> None:
        self._copies = copies
        row_of = {slot: row for row, slot in enumerate(rows)}
        members: list[list[int]] = [[] for _ in lengths]
        for slot in running:
            members[of_slot[slot]].append(row_of[slot])
        most = max(map(len, members))
        queries = np.zeros((len(members), most), np.int64)
        places = np.full(len(rows), int(of_slot[running[0]]) * most)  # of a row that is idle: anything that is a number
        for number, group in enumerate(members):
            queries[number, : len(group)] = group
            places[group] = number * most + np.arange(len(group))
        self._queries, self._places = torch.as_tensor(queries), torch.as_tensor(places)

        own = [row_of[slot] for slot in running]
        slots = np.array(running)
        self.begin, self.width = int(lengths[of_slot[slots]].min()), int(held[slots].max()) + 1
        first, last = np.full((2, len(rows)), self.begin)  # a row that is idle sees one key, whatever it is
        first[own], last[own] = lengths[of_slot[slots]], held[slots]
        stands = np.arange(self.begin, self.width)
        seen = (first[:, None] <= stands) & (stands <= last[:, None])
        within = np.arange(lengths.max()) < lengths[:, None]
        self._seen = torch.as_tensor(seen)[:, None, None]
        self._within = None if within.all() else torch.as_tensor(within)[:, None, None].expand(-1, -1, most, -1)
        self._masks: dict[int, tuple[torch.Tensor | None, torch.Tensor]] = {}

    def attend(
        self, layer: int, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scaling: float
    ) -> torch.Tensor:
        """`query` (rows, heads, 1, dim); `keys` and `values` (rows, key heads, width - begin, dim) behind `begin`.
        Returns (rows, 1, heads, dim)."""
        rows, heads, _, dim = query.shape
        key_heads, each = keys.shape[1], heads // keys.shape[1]
        if each not in self._masks:
            common = None if self._within is None else additive_mask(self._within, query, keys)
            self._masks[each] = common, additive_mask(self._seen, query, keys)
        common, own = self._masks[each]
        folded = query.view(rows, key_heads, each, dim)
        found, total = _attention(folded, keys, values, attn_mask=own, scale=scaling)
        groups, most = self._queries.shape
        asked = folded[self._queries].transpose(1, 2).flatten(2, 3)  # (groups, key heads, most each, dim)
        shared, weight = _attention(asked, *self._copies[layer], attn_mask=common, scale=scaling)
        shared = shared.view(groups, key_heads, most, each, dim).transpose(1, 2).flatten(0, 1)[self._places]
        weight = weight.view(groups, key_heads, most, each).transpose(1, 2).flatten(0, 1)[self._places]
        share = torch.sigmoid(weight - total.view(rows, key_heads, each))[..., None].to(found.dtype)
        return torch.lerp(found, shared, share).reshape(rows, 1, heads, dim)
