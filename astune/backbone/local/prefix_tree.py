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

import numpy as np
import torch

from astune.backbone.local.attention import grouped_attention

QUERY_BLOCK = 32
"""Queries of one path that share a gathered list of keys."""


@dataclass(frozen=True)
class PackedTree:
    """`tokens[i]` stands at `positions[i]` of its rows; `paths[r]` are the packed indices of row r, in order;
    `segments` are the (row, start, stop) stretches of rows that were new when packed, covering `tokens` in order."""

    tokens: np.ndarray
    positions: np.ndarray
    paths: tuple[np.ndarray, ...]
    segments: tuple[tuple[int, int, int], ...]


def pack(rows: Sequence[Sequence[int]]) -> PackedTree:
    """Merge rows on their common prefixes. `rows` sorted lexicographically; paths come in the order of `rows`.

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


def split(rows: Sequence[Sequence[int]], most_tokens: int) -> Iterator[range]:
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
    """How many leading entries are equal."""
    width = min(len(a), len(b))
    differs = a[:width] != b[:width]
    return int(differs.argmax()) if differs.any() else width


@dataclass(frozen=True)
class _Piece:
    """Up to `QUERY_BLOCK` queries, the first at position `first`, and the keys of their path up to the last query;
    packed indices."""

    queries: np.ndarray
    keys: np.ndarray
    first: int


@dataclass(frozen=True)
class _Block:
    """Queries (n, q) and keys (n, k) as packed indices, padded with 0; `mask` (n, 1, q, k) is True where seen."""

    queries: torch.Tensor
    keys: torch.Tensor
    mask: torch.Tensor


class TreeLayout:
    """Attention within a packed tree: each query sees the tokens before it on its own path, and itself."""

    def __init__(self, tree: PackedTree, device: torch.device) -> None:
        buckets: dict[int, list[_Piece]] = defaultdict(list)
        for row, start, stop in tree.segments:
            path = tree.paths[row]
            for first in range(start, stop, QUERY_BLOCK):
                last = min(first + QUERY_BLOCK, stop)
                buckets[max(64, 1 << (last - 1).bit_length())].append(_Piece(path[first:last], path[:last], first))
        self._blocks = [_block(bucket, device) for bucket in buckets.values()]
        where = np.empty(len(tree.tokens), np.int64)
        for number, piece in enumerate(piece for bucket in buckets.values() for piece in bucket):
            where[piece.queries] = number * QUERY_BLOCK + np.arange(len(piece.queries))
        self._where = torch.as_tensor(where, device=device)

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float
    ) -> torch.Tensor:
        queries, keys, values = (states[0].transpose(0, 1) for states in (query, key, value))
        outputs = []
        for block in self._blocks:
            n, width = block.keys.shape
            q = _gather(queries, block.queries, (n, QUERY_BLOCK))
            k, v = (_gather(states, block.keys, (n, width)) for states in (keys, values))
            outputs.append(grouped_attention(q, k, v, block.mask, scaling).flatten(0, 1))
        return torch.cat(outputs).index_select(0, self._where)[None]


def _gather(states: torch.Tensor, index: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
    """(tokens, heads, dim) to (n, heads, width, dim)."""
    picked = states.index_select(0, index.flatten())
    return picked.view(*shape, *states.shape[1:]).transpose(1, 2)


def _block(pieces: Sequence[_Piece], device: torch.device) -> _Block:
    width = max(len(piece.keys) for piece in pieces)
    queries = np.zeros((len(pieces), QUERY_BLOCK), np.int64)
    keys = np.zeros((len(pieces), width), np.int64)
    for number, piece in enumerate(pieces):
        queries[number, : len(piece.queries)] = piece.queries
        keys[number, : len(piece.keys)] = piece.keys
    positions = np.array([piece.first for piece in pieces])[:, None] + np.arange(QUERY_BLOCK)
    mask = np.arange(width)[None, None, :] <= positions[:, :, None]
    tensors = (torch.as_tensor(array, device=device) for array in (queries, keys, mask[:, None]))
    return _Block(*tensors)
