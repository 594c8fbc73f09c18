"""Ranks that share every row (sequence parallelism) on a CPU, for tests.

verl shares rows out around flash attention, which a CPU has not. `rows_by_sdpa` stands in for that kernel alone, with
torch's own attention; what is cut, sent between the ranks and put together again is verl's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.integrations import flash_attention
from transformers.masking_utils import AttentionMaskInterface, flash_attention_mask
from verl.models.transformers import monkey_patch

NAME = "rows_by_sdpa"


def rows_by_sdpa(
    query: Any, key: Any, value: Any, mask: None, length: int, *, position_ids: Any, softmax_scale: float, **more: Any
) -> Any:
    """As transformers calls the kernel: (1, tokens, heads, size), rows one behind the other."""
    starts = (position_ids.flatten() == 0).nonzero().flatten().tolist()
    parts = []
    for start, end in zip(starts, [*starts[1:], query.shape[1]], strict=True):
        own = [each[:, start:end].transpose(1, 2) for each in (query, key, value)]
        seen = scaled_dot_product_attention(*own, is_causal=True, scale=softmax_scale, enable_gqa=True)
        parts.append(seen.transpose(1, 2))
    return torch.cat(parts, dim=1)


def share_rows(config: Any, ranks: int) -> None:
    """Set verl's configuration, and this process, so that so many ranks share a row."""
    AttentionInterface.register(NAME, flash_attention.flash_attention_forward)
    AttentionMaskInterface.register(NAME, flash_attention_mask)
    monkey_patch._flash_attention_forward = rows_by_sdpa
    parts = config.actor_rollout_ref
    parts.model.use_remove_padding = True
    parts.model.override_config.attn_implementation = NAME
    for role in (parts.actor, parts.ref):
        role.ulysses_sequence_parallel_size = ranks
