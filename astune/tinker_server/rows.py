"""Token rows as a packed prefix tree, and the log-probabilities of their targets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from astune.backbone.local.learning.prefix_tree import TreeLayout, pack, split

MOST_TOKENS = 8192
"""Tokens in one forward pass; more are slower on a CPU, for its caches."""
MOST_LOGITS = 2**28
"""Logits in one forward pass; with a vocabulary of 150 000 they stand for 1 GB and some 1 800 tokens."""


@dataclass(frozen=True)
class TargetRow:
    """`targets[i]` is to follow `tokens[: i + 1]`; `weights[i]` is its weight in the loss. All (n,), n at least 1."""

    tokens: np.ndarray
    targets: np.ndarray
    weights: np.ndarray


@dataclass(frozen=True)
class RowBatch:
    """Rows that are computed together. `tokens` and `positions` (1, packed); the others have one entry for each token
    of each row, in the order of `numbers`: `source` is the packed index whose logits give the target."""

    numbers: tuple[int, ...]
    lengths: tuple[int, ...]
    layout: TreeLayout
    tokens: torch.Tensor
    positions: torch.Tensor
    source: torch.Tensor
    targets: torch.Tensor
    weights: torch.Tensor


def most_tokens(vocabulary: int) -> int:
    """Packed tokens of one batch, so that its logits fit into memory."""
    return min(MOST_TOKENS, max(MOST_LOGITS // vocabulary, 1))


def row_batches(rows: Sequence[TargetRow], limit: int, device: torch.device) -> Iterator[RowBatch]:
    """Sort rows so that shared prefixes meet, and cut them into trees of at most `limit` tokens (one row at least)."""
    order = sorted(range(len(rows)), key=lambda number: (rows[number].tokens.astype(">i4").tobytes(), number))
    for part in split([rows[number].tokens for number in order], limit):
        numbers = tuple(order[index] for index in part)
        yield _batch(numbers, [rows[number] for number in numbers], device)


def _batch(numbers: tuple[int, ...], rows: Sequence[TargetRow], device: torch.device) -> RowBatch:
    tree = pack([row.tokens for row in rows])

    def tensor(array: np.ndarray, dtype: torch.dtype = torch.long) -> torch.Tensor:
        return torch.as_tensor(array).to(device, dtype)

    return RowBatch(
        numbers=numbers,
        lengths=tuple(len(row.tokens) for row in rows),
        layout=TreeLayout(tree, device),
        tokens=tensor(tree.tokens)[None],
        positions=tensor(tree.positions)[None],
        source=tensor(np.concatenate(tree.paths)),
        targets=tensor(np.concatenate([row.targets for row in rows])),
        weights=tensor(np.concatenate([row.weights for row in rows]), torch.float32),
    )


def logits_of(model: Any, batch: RowBatch, temperature: float) -> torch.Tensor:
    """Logits / temperature (packed, vocabulary) in float32."""
    output = model(input_ids=batch.tokens, position_ids=batch.positions, use_cache=False, layout=batch.layout)
    logits: torch.Tensor = output.logits[0].float()
    return logits if temperature == 1 else logits / temperature


def target_logprobs(logits: torch.Tensor, batch: RowBatch) -> torch.Tensor:
    """Log-probabilities (e,) of the targets of the batch under the softmax of `logits`."""
    return logits[batch.source, batch.targets] - torch.logsumexp(logits, dim=-1)[batch.source]
