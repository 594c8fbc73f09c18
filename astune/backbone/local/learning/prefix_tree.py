"""Training batches without repeated tokens: the rows of a batch as one prefix tree.

    row 1   S Q1 a b c          packed   S Q1 a b c | d e | Q2 f
    row 2   S Q1 a d e          row 2 reads S, Q1, a from row 1 and adds d e
    row 3   S Q2 f              row 3 reads S from row 1 and adds Q2 f

Every distinct token path is computed once, forward and backward. A query attends to the tokens on its own path
only, so the result equals that of the separate rows (the idea of Tree Training, arXiv 2511.00413). Losses stay per
row: a token shared by two rows has one log-probability and two loss terms.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import torch

from astune.backbone.local.learning.tree_attention import (
    SharedKeys,
    TreeBlock,
    TreeParts,
    attend_in_parts,
    gather,
)
from astune.backbone.local.model.attention import Rule, additive_mask, attend_in_groups, can_merge
from astune.backbone.local.model.flash import Paths, attend_to_paths, uses_flash

QUERY_BLOCK = 128
"""Most queries of one path that share a gathered list of keys: fewer copy more keys, more compute more in vain."""
SMALLEST_BLOCK, SMALLEST_WIDTH = 16, 64
"""Pieces of fewer queries or keys are padded to so many, so that they are computed together."""
LONG_WIDTH = 4096
"""Pieces of so many keys that stand side by side are computed one by one and read the keys where they are: copies for
each piece of a row of n tokens would be n / 256 times its keys."""
LEAST_SHARED = 64
"""Fewest keys that queries of several branches read where they are, on the CPU: to merge what a part gives costs about
as much as to attend to a few tens of keys."""
MOST_SHARED = 256
"""Most keys of such a part: longer stretches are cut, so that what follows in the same row reads them so too."""
LEAST_AREA = 2**15
"""Fewest pairs of a query and a key for which that is a call by itself."""

TokenRow: TypeAlias = "Sequence[int] | np.ndarray"
"""Token ids."""


@dataclass(frozen=True)
class PackedTree:
    """`tokens[i]` stands at `positions[i]` of its rows; `paths[r]` are the packed indices of row r, in order;
    `segments` are the (row, start, stop) stretches of rows that were new when packed, covering `tokens` in order."""

    tokens: np.ndarray
    positions: np.ndarray
    paths: tuple[np.ndarray, ...]
    segments: tuple[tuple[int, int, int], ...]


def pack(rows: Sequence[TokenRow]) -> PackedTree:
    """Merge rows on their common prefixes. `rows` are sorted so that equal beginnings stand together; paths come in
    their order.

    >>> pack([(1, 2, 3), (1, 2, 4), (5,)]).tokens.tolist()
    [1, 2, 3, 4, 5]
    """
    arrays = [np.asarray(row, np.int64) for row in rows]
    paths: list[np.ndarray] = []
    segments: list[tuple[int, int, int]] = []
    total = 0
    for number, row in enumerate(arrays):
        shared = common_prefix(arrays[number - 1], row) if number else 0
        fresh = np.arange(total, total + len(row) - shared)
        paths.append(np.concatenate([paths[-1][:shared], fresh]) if number else fresh)
        if len(fresh):
            segments.append((number, shared, len(row)))
        total += len(fresh)
    tokens = np.concatenate([arrays[row][start:stop] for row, start, stop in segments])
    positions = np.concatenate([np.arange(start, stop) for _, start, stop in segments])
    return PackedTree(tokens, positions, tuple(paths), tuple(segments))


def split(rows: Sequence[TokenRow], most_tokens: int) -> Iterator[range]:
    """Cut sorted `rows` into consecutive ranges whose trees have at most `most_tokens` tokens (one row at least)."""
    start, size = 0, 0
    previous: np.ndarray | None = None
    for number, row in enumerate(rows):
        array = np.asarray(row, np.int64)
        fresh = len(array) - (common_prefix(previous, array) if previous is not None else 0)
        if size and size + fresh > most_tokens:
            yield range(start, number)
            start, size, fresh = number, 0, len(array)
        size += fresh
        previous = array
    if size:
        yield range(start, len(rows))


def common_prefix(a: np.ndarray, b: np.ndarray) -> int:
    """Count the leading entries that are equal."""
    width = min(len(a), len(b))
    differs = a[:width] != b[:width]
    return int(differs.argmax()) if differs.any() else width


@dataclass(frozen=True)
class _Piece:
    """Up to `QUERY_BLOCK` queries that follow one another, and the keys of their path that one of them sees in a block;
    packed indices."""

    queries: np.ndarray
    keys: np.ndarray

    @property
    def is_long(self) -> bool:
        """Many keys, none of which belongs to another path in between."""
        return len(self.keys) >= LONG_WIDTH and int(self.keys[-1] - self.keys[0]) == len(self.keys) - 1


@dataclass(frozen=True)
class _Plan:
    """The parts of a tree for layers of one rule. `masks` are filled in by the first layer, by the number of query
    heads per key head."""

    parts: TreeParts
    masks: dict[int, list[torch.Tensor]]


class TreeLayout:
    """Attention within a packed tree: each query sees the tokens before it on its own path, and itself; of those the
    last ones only in a layer with a sliding window."""

    def __init__(self, tree: PackedTree, device: torch.device) -> None:
        self._tree, self._device = tree, device
        self._plans: dict[tuple[int | None, bool], _Plan] = {}
        self._paths: dict[int | None, Paths] = {}

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rule: Rule
    ) -> torch.Tensor:
        if uses_flash(query, value, rule):
            if rule.window not in self._paths:
                self._paths[rule.window] = _paths(self._tree, rule.window, self._device)
            return attend_to_paths(query, key, value, self._paths[rule.window], rule)
        in_parts = can_merge(query, value, rule)
        if (rule.window, in_parts) not in self._plans:
            shared = find_shared_parts(self._tree) if in_parts else ()
            self._plans[rule.window, in_parts] = _Plan(_parts(self._tree, rule.window, shared, self._device), {})
        plan = self._plans[rule.window, in_parts]
        if in_parts:
            return _attend_in_parts(plan, query, key, value, rule)
        return _attend_in_blocks(plan, query, key, value, rule)


def _attend_in_parts(
    plan: _Plan, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rule: Rule
) -> torch.Tensor:
    each = query.shape[1] // key.shape[1]
    if each not in plan.masks:
        plan.masks[each] = [
            additive_mask(block.seen.repeat_interleave(each, dim=2), key, key) for block in plan.parts.blocks
        ]
    masks = plan.masks[each]
    q, k, v = (states[0].to(masks[0].dtype) for states in (query, key, value))  # as autocast does with a fused kernel
    return attend_in_parts(q, k, v, plan.parts, masks, rule.scaling)[None]


def _attend_in_blocks(
    plan: _Plan, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rule: Rule
) -> torch.Tensor:
    shared = query.shape[1] // key.shape[1]
    if shared not in plan.masks:
        plan.masks[shared] = [additive_mask(block.seen, query, key) for block in plan.parts.blocks]
    queries, keys, values = (states[0].transpose(0, 1) for states in (query, key, value))
    outputs = []
    for block, mask in zip(plan.parts.blocks, plan.masks[shared], strict=True):
        q, k, v = gather(queries, block.queries), gather(keys, block.keys), gather(values, block.keys)
        outputs.append(attend_in_groups(q, k, v, mask, rule).flatten(0, 1))
    return torch.cat(outputs).index_select(0, plan.parts.where)[None]


def _paths(tree: PackedTree, window: int | None, device: torch.device) -> Paths:
    """A row for each segment: its tokens, and those that one of them sees."""
    firsts = [0 if window is None else max(0, begin - window + 1) for _, begin, _ in tree.segments]
    keys = [tree.paths[row][first:stop] for first, (row, _, stop) in zip(firsts, tree.segments, strict=True)]
    new, seen = [stop - begin for _, begin, stop in tree.segments], [len(path) for path in keys]
    begins, key_begins = (
        torch.tensor(np.cumsum([0, *sizes]), dtype=torch.int32, device=device) for sizes in (new, seen)
    )
    index = np.concatenate(keys)
    own = len(index) == len(tree.tokens)  # then no key is seen from another segment
    return Paths(begins, key_begins, max(new), max(seen), None if own else torch.as_tensor(index, device=device))


def find_shared_parts(tree: PackedTree) -> tuple[SharedKeys, ...]:
    """The stretches of a tree with enough tokens behind them that all see all of the stretch."""
    rows, begins, stops = np.array(tree.segments).T
    first = np.concatenate([[0], np.cumsum(stops - begins)])  # the packed index at which each segment begins
    forks = [tree.paths[row][begin - 1] + 1 for row, begin in zip(rows, begins, strict=True) if begin]
    nodes = np.unique(np.concatenate([first, np.array(forks, np.int64)])).tolist()
    cuts = [cut for start, stop in pairwise(nodes) for cut in range(start, stop, MOST_SHARED)] + nodes[-1:]
    found = []
    for start, stop in pairwise(cuts):
        if stop - start < LEAST_SHARED:
            continue
        later = int(np.searchsorted(first, stop))  # the first segment behind it; those that leave it end what is below
        leaves = begins[later:] <= tree.positions[stop - 1]
        end = int(first[later + leaves.argmax()]) if leaves.any() else len(tree.tokens)
        if (stop - start) * (end - stop) >= LEAST_AREA:
            found.append(SharedKeys(start, stop, end))
    return tuple(found)


def _parts(tree: PackedTree, window: int | None, shared: tuple[SharedKeys, ...], device: torch.device) -> TreeParts:
    buckets: dict[tuple[int, int, int], list[_Piece]] = defaultdict(list)
    for piece in _cut_pieces(tree, window, shared):
        width = max(SMALLEST_WIDTH, _next_power(len(piece.keys)))
        own = len(buckets) if piece.is_long else -1
        buckets[max(SMALLEST_BLOCK, _next_power(len(piece.queries))), width, own].append(piece)
    where = np.empty(len(tree.tokens), np.int64)
    place = 0
    for (queries, *_), bucket in buckets.items():
        for piece in bucket:
            where[piece.queries] = place + np.arange(len(piece.queries))
            place += queries
    blocks = tuple(_make_block(tree, bucket, queries, window, device) for (queries, *_), bucket in buckets.items())
    return TreeParts(blocks, shared, torch.as_tensor(where, device=device))


def _cut_pieces(tree: PackedTree, window: int | None, shared: tuple[SharedKeys, ...]) -> Iterator[_Piece]:
    """Queries in order; each piece sees the same of `shared`, which are not among its keys."""
    stops, ends = (np.array(values, np.int64) for values in ([s.stop for s in shared], [s.end for s in shared]))
    for row, begin, stop in tree.segments:
        path = tree.paths[row]
        within = stops[(path[begin] < stops) & (stops <= path[stop - 1])]
        cuts = [begin, *tree.positions[within].tolist(), stop]
        for left, right in pairwise(cuts):
            kept = np.ones(right, bool)
            for number in np.flatnonzero((stops <= path[left]) & (path[left] < ends)):
                kept[tree.positions[shared[number].start : shared[number].stop]] = False
            for first in range(left, right, QUERY_BLOCK):
                last = min(first + QUERY_BLOCK, right)
                start = 0 if window is None else max(0, first - window + 1)
                yield _Piece(path[first:last], path[start:last][kept[start:last]])


def _next_power(number: int) -> int:
    """The next one that is not smaller."""
    return 1 << (number - 1).bit_length()


def _make_block(
    tree: PackedTree, pieces: Sequence[_Piece], size: int, window: int | None, device: torch.device
) -> TreeBlock:
    width = max(len(piece.keys) for piece in pieces)
    queries = np.zeros((len(pieces), size), np.int64)
    keys = np.zeros((len(pieces), width), np.int64)
    stands = np.full((len(pieces), width), np.iinfo(np.int64).max)
    for number, piece in enumerate(pieces):
        queries[number, : len(piece.queries)] = piece.queries
        keys[number, : len(piece.keys)] = piece.keys
        stands[number, : len(piece.keys)] = tree.positions[piece.keys]
    positions = tree.positions[queries[:, :1]] + np.arange(size)
    seen = stands[:, None, :] <= positions[:, :, None]
    padding = np.arange(size) >= np.array([[len(piece.queries)] for piece in pieces])
    if window is not None:
        # Padding behind the queries of a piece would see nothing, and its softmax be no number.
        seen &= (stands[:, None, :] > positions[:, :, None] - window) | padding[:, :, None]
    at, of, mask, empty = (torch.as_tensor(array, device=device) for array in (queries, keys, seen[:, None], padding))
    is_long = len(pieces) == 1 and pieces[0].is_long
    return TreeBlock(at, slice(int(keys[0, 0]), int(keys[0, -1]) + 1) if is_long else of, mask, empty)
