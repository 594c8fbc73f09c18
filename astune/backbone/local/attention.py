"""One attention function for sampling and training, over any memory layout.

transformers lets a model's attention be replaced by name (`AttentionInterface`) and hands extra keyword arguments
through to it. ASTune registers the name `astune`, and every forward pass brings the `Layout` that says which
tokens a query sees. So the same weights of any decoder-only model serve a key-value cache with slots
(`kv_cache.py`) and prefix-tree training batches (`prefix_tree.py`), and no model code is copied.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from transformers import AttentionInterface

from astune.errors import ModelError

ATTENTION = "astune"


class Layout(Protocol):
    """The place of keys and values in memory, and which of them each query sees."""

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float
    ) -> torch.Tensor:
        """`query` is (batch, heads, queries, dim), `key` and `value` (batch, key-value heads, queries, dim) of the
        same new tokens, positions already applied. Returns (batch, queries, heads, dim)."""


def additive_mask(seen: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Make what `grouped_attention` adds to the scores, the same in every layer: 0 where `seen` (n, 1, q, k) is True,
    minus infinity elsewhere. Every query must see at least one key."""
    mask = torch.zeros(seen.shape, dtype=query.dtype, device=seen.device).masked_fill_(~seen, -torch.inf)
    return mask if mask.shape[2] == 1 else mask.repeat(1, 1, query.shape[1] // key.shape[1], 1)


def grouped_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, scaling: float
) -> torch.Tensor:
    """Attention with fewer key-value heads than query heads, without copying keys.

    `query` (n, heads, q, d), `key`/`value` (n, kv_heads, k, d), `mask` from `additive_mask`. The query heads that
    share a key head are laid along the query axis. Returns (n, q, heads, d).
    """
    n, heads, queries, dim = query.shape
    folded = query.reshape(n, key.shape[1], -1, dim)
    out = torch.nn.functional.scaled_dot_product_attention(folded, key, value, attn_mask=mask, scale=scaling)
    return out.reshape(n, heads, queries, dim).transpose(1, 2)


def _attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: None,
    *,
    scaling: float,
    layout: Layout,
    sliding_window: int | None = None,
    **_: object,
) -> tuple[torch.Tensor, None]:
    if sliding_window is not None:
        raise ModelError("the local backbone does not support models with sliding-window attention")
    return layout.attend(module.layer_idx, query, key, value, scaling), None


AttentionInterface.register(ATTENTION, _attention)
