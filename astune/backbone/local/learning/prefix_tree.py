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
from typing import TypeAlias

import numpy as np
import torch

from astune.backbone.local.model.attention import Rule, additive_mask, grouped_attention

QUERY_BLOCK = 128
"""Most queries of one path that share a gathered list of keys: fewer copy more keys, more compute more in vain."""
SMALLEST_BLOCK, SMALLEST_WIDTH = 16, 64
"""Pieces of fewer queries or keys are padded to so many, so that they are computed together."""
LONG_WIDTH = 4096
"""Pieces of so many keys that stand side by side are computed one by one and read the keys where they are: copies for
each piece of a row of n tokens would be n / 256 times its keys."""

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
    """Up to `QUERY_BLOCK` queries, the first at position `first`, and the keys of their path that one of them sees, the
    first of them at position `start`; packed indices."""

    queries: np.ndarray
    keys: np.ndarray
    first: int
    start: int

    @property
    def is_long(self) -> bool:
        """Many keys, none of which belongs to another path in between."""
        return len(self.keys) >= LONG_WIDTH and int(self.keys[-1] - self.keys[0]) == len(self.keys) - 1


@dataclass(frozen=True)
class _Block:
    """Queries (n, q) and keys (n, k) as packed indices, padded with 0, or keys of one piece as a slice; `seen`
    (n, 1, q, k)."""

    queries: torch.Tensor
    keys: torch.Tensor | slice
    seen: torch.Tensor


@dataclass(frozen=True)
class _Plan:
    """What is computed for layers of one window: the blocks, and for each packed token the place of its query among
    those of all blocks. `masks` are filled in by the first layer, by the number of query heads per key head."""

    blocks: tuple[_Block, ...]
    where: torch.Tensor
    masks: dict[int, list[torch.Tensor]]


class TreeLayout:
    """Attention within a packed tree: each query sees the tokens before it on its own path, and itself; of those the
    last ones only in a layer with a sliding window."""

    def __init__(self, tree: PackedTree, device: torch.device) -> None:
        self._tree, self._device = tree, device
        self._plans: dict[int | None, _Plan] = {}

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rule: Rule
    ) -> torch.Tensor:
        if rule.window not in self._plans:
            self._plans[rule.window] = _plan(self._tree, rule.window, self._device)
        plan, shared = self._plans[rule.window], query.shape[1] // key.shape[1]
        if shared not in plan.masks:
            plan.masks[shared] = [additive_mask(block.seen, query, key) for block in plan.blocks]
        queries, keys, values = (states[0].transpose(0, 1) for states in (query, key, value))
        outputs = []
        for block, mask in zip(plan.blocks, plan.masks[shared], strict=True):
            q, k, v = _gather(queries, block.queries), _gather(keys, block.keys), _gather(values, block.keys)
            outputs.append(grouped_attention(q, k, v, mask, rule).flatten(0, 1))
        return torch.cat(outputs).index_select(0, plan.where)[None]


def _plan(tree: PackedTree, window: int | None, device: torch.device) -> _Plan:
    buckets: dict[tuple[int, int, int], list[_Piece]] = defaultdict(list)
    for row, begin, stop in tree.segments:
        path = tree.paths[row]
        for first in range(begin, stop, QUERY_BLOCK):
            last = min(first + QUERY_BLOCK, stop)
            start = 0 if window is None else max(0, first - window + 1)
            width = max(SMALLEST_WIDTH, _power_of_two(last - start))
            piece = _Piece(path[first:last], path[start:last], first, start)
            own = len(buckets) if piece.is_long else -1
            buckets[max(SMALLEST_BLOCK, _power_of_two(last - first)), width, own].append(piece)
    where = np.empty(len(tree.tokens), np.int64)
    place = 0
    for (queries, *_), bucket in buckets.items():
        for piece in bucket:
            where[piece.queries] = place + np.arange(len(piece.queries))
            place += queries
    blocks = tuple(_block(bucket, queries, window, device) for (queries, *_), bucket in buckets.items())
    return _Plan(blocks, torch.as_tensor(where, device=device), {})


def _power_of_two(number: int) -> int:
    """The next one that is not smaller."""
    return 1 << (number - 1).bit_length()


def _gather(states: torch.Tensor, index: torch.Tensor | slice) -> torch.Tensor:
    """(tokens, heads, dim) at `index` (n, width), as (n, heads, width, dim)."""
    if isinstance(index, slice):
        return states[index].transpose(0, 1)[None]
    picked = states.index_select(0, index.flatten())
    return picked.view(*index.shape, *states.shape[1:]).transpose(1, 2)


def _block(pieces: Sequence[_Piece], size: int, window: int | None, device: torch.device) -> _Block:
    width = max(len(piece.keys) for piece in pieces)
    queries = np.zeros((len(pieces), size), np.int64)
    keys = np.zeros((len(pieces), width), np.int64)
    for number, piece in enumerate(pieces):
        queries[number, : len(piece.queries)] = piece.queries
        keys[number, : len(piece.keys)] = piece.keys
    positions = np.array([piece.first for piece in pieces])[:, None] + np.arange(size)
    stands = np.array([piece.start for piece in pieces])[:, None] + np.arange(width)
    seen = stands[:, None, :] <= positions[:, :, None]
    if window is not None:
        # Padding behind the queries of a piece would see nothing, and its softmax be no number.
        padding = np.arange(size) >= np.array([[len(piece.queries)] for piece in pieces])
        seen &= (stands[:, None, :] > positions[:, :, None] - window) | padding[:, :, None]
    at, of, mask = (torch.as_tensor(array, device=device) for array in (queries, keys, seen[:, None]))
    is_long = len(pieces) == 1 and pieces[0].is_long
    return _Block(at, slice(int(keys[0, 0]), int(keys[0, -1]) + 1) if is_long else of, mask)
