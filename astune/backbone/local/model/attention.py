"""One attention function for sampling and training, over any memory layout.

transformers lets a model's attention be replaced by name (`AttentionInterface`) and hands extra keyword arguments
through to it. ASTune registers a name for each value of `astune.model.attention`, and every forward pass brings the
`Layout` that says which tokens a query sees. So the same weights of any decoder-only model serve a key-value cache with
slots (`kv_cache.py`) and prefix-tree training batches (`prefix_tree.py`), and no model code is copied.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from transformers import AttentionInterface

from astune.errors import ModelError
from astune.support.machine_memory import is_of_amd

ATTENTION = "astune"
FUSED, PRODUCTS, FLASH = "sdpa", "eager", "flash_attention_2"
"""Values of `astune.model.attention` beside "auto": torch's fused kernels or, where these are slower, products."""
NAMES: Mapping[str, str] = {
    "auto": ATTENTION,
    FUSED: f"{ATTENTION}_fused",
    PRODUCTS: f"{ATTENTION}_products",
    FLASH: f"{ATTENTION}_without_masks",
}
"""Names of the values in transformers: none has "sdpa" or "flash" in it, which would be one of its own."""
ALIGNED = 8
"""CUDA's memory-efficient attention copies a mask whose strides are no multiples of this."""
FEW_HEADS = 4
"""Key heads of all rows, up to which the fused kernel is as quick as products for one query of each."""
AUTOCAST = ("cpu", "cuda")
"""The devices that a model is trained on; torch knows more, and not `meta`."""


@dataclass(frozen=True)
class Rule:
    """The weights that a layer gives the keys that a query may see.

    Scores are `scaling` q k, then `softcap` tanh(score / softcap) where that is given (Gemma 2, arXiv 2408.00118).
    With a `window` a query at position i sees positions i - window + 1 to i only. `sinks` (heads,) are scores that take
    part in the softmax and stand for no key (gpt-oss; arXiv 2309.17453). `kernel` is what computes it, a value of
    `astune.model.attention`.
    """

    scaling: float
    window: int | None = None
    softcap: float | None = None
    sinks: torch.Tensor | None = None
    kernel: str = "auto"


class Layout(Protocol):
    """The place of keys and values in memory, and which of them each query sees."""

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rule: Rule
    ) -> torch.Tensor:
        """`query` is (batch, heads, queries, dim), `key` and `value` (batch, key-value heads, queries, dim) of the
        same new tokens, positions already applied. Returns (batch, queries, heads, dim of the values)."""


def additive_mask(seen: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Make what `attend_in_groups` adds to the scores, the same in every layer: 0 where `seen` (n, 1, q, k) is True,
    minus infinity elsewhere. Every query must see at least one key.

    It is what a fused kernel takes as it is, for otherwise each layer would keep a copy of its own until the backward
    pass: in the precision that attention computes in, which autocast may make another than that of `query`, and with
    rows that begin at multiples of `ALIGNED` numbers.
    """
    width = seen.shape[3]
    rows = torch.zeros(
        (*seen.shape[:3], -(-width // ALIGNED) * ALIGNED), dtype=find_precision(query), device=seen.device
    )
    rows[..., :width].masked_fill_(~seen, -torch.inf)
    rows = rows if rows.shape[2] == 1 else rows.repeat(1, 1, query.shape[1] // key.shape[1], 1)
    return rows[..., :width]


def find_precision(query: torch.Tensor) -> torch.dtype:
    """Find the precision that a fused kernel computes in, which autocast may make another than that of `query`."""
    kind = query.device.type
    is_cast = kind in AUTOCAST and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if is_cast else query.dtype


def can_merge(query: torch.Tensor, value: torch.Tensor, rule: Rule) -> bool:
    """Tell a layer that torch's kernel for the CPU computes: it gives the sums by which parts of the keys are
    merged."""
    plain = rule.window is None and rule.softcap is None and rule.sinks is None and rule.kernel in ("auto", FUSED)
    return plain and query.device.type == "cpu" and query.shape[3] == value.shape[3]


def attend_in_groups(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, rule: Rule
) -> torch.Tensor:
    """Attention with fewer key-value heads than query heads, without copying keys.

    `query` (n, heads, q, d), `key`/`value` (n, kv_heads, k, d), `mask` from `additive_mask`. The query heads that
    share a key head are laid along the query axis. Returns (n, q, heads, d).
    """
    n, heads, queries, dim = query.shape
    folded = query.reshape(n, key.shape[1], -1, dim)
    slower = rule.kernel == PRODUCTS or (rule.kernel == "auto" and queries == 1 and _prefers_products(folded))
    if rule.softcap is None and rule.sinks is None and not slower:
        out = torch.nn.functional.scaled_dot_product_attention(folded, key, value, attn_mask=mask, scale=rule.scaling)
    else:
        out = _attend_by_products(folded, key, value, mask, rule)
    return out.reshape(n, heads, queries, value.shape[3]).transpose(1, 2)


def _prefers_products(folded: torch.Tensor) -> bool:
    """True if one query of each row, `folded` (n, kv_heads, heads of a key head, d), is quicker with batched products.
    The fused kernel calls MKL for one key head after another, and on processors of AMD that takes longer than to
    compute; on those of Intel the two were within a tenth of each other."""
    heads = folded.shape[0] * folded.shape[1]
    return heads > FEW_HEADS and folded.dtype == torch.float32 and folded.device.type == "cpu" and is_of_amd()


def _attend_by_products(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, rule: Rule
) -> torch.Tensor:
    """Attention of folded queries whose scores no fused kernel computes, or none as quickly."""
    scores = query @ key.transpose(2, 3) * rule.scaling
    if rule.softcap is not None:
        scores = torch.tanh(scores / rule.softcap) * rule.softcap
    scores = scores + mask
    if rule.sinks is not None:  # one column more, which no value belongs to
        each = scores.shape[2] * key.shape[1] // len(rule.sinks)
        column = rule.sinks.to(scores.dtype).repeat_interleave(each).view(1, key.shape[1], -1, 1)
        scores = torch.cat([scores, column.expand(len(scores), -1, -1, 1)], dim=3)
    dtype = torch.promote_types(scores.dtype, torch.float32)
    weights = torch.softmax(scores, dim=3, dtype=dtype).to(value.dtype)
    return weights[..., : key.shape[2]] @ value


def _attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    layout: Layout,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    position_bias: torch.Tensor | None = None,
    kernel: str,
    **_: object,
) -> tuple[torch.Tensor, None]:
    own = {"a mask": attention_mask is not None, "a bias": position_bias is not None, "dropout": dropout > 0}
    if given := [name for name, is_given in (own | {"no causal order": is_causal is False}).items() if is_given]:
        raise ModelError(f"{type(module).__name__} brings {' and '.join(given)} of its own to attention")
    scale = query.shape[3] ** -0.5 if scaling is None else scaling
    rule = Rule(scale, sliding_window, softcap, s_aux, kernel)
    return layout.attend(module.layer_idx, query, key, value, rule), None


for _kernel, _name in NAMES.items():
    AttentionInterface.register(_name, partial(_attention, kernel=_kernel))
