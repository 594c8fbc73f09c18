"""Attention by the kernels of flash-attn (arXiv 2307.08691), for CUDA in half precision: no masks, and in the sampler
no copies of keys.

    training   each stretch of new tokens is a row of its own behind the keys of its path: queries are the packed tokens
               as they stand, and the last query of a row sees its last key
    sampling   each row reads its slot of the cache where it is, as far as the slot is filled
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from astune.backbone.foreign.packages import NEEDED_BY, unusable
from astune.backbone.local.model.attention import FLASH, Rule, find_precision
from astune.errors import ModelError

MOST_DIM = 256
"""Numbers in a head that the kernels are made for."""
LEAST_CAPABILITY = (8, 0)


@dataclass(frozen=True)
class Paths:
    """The rows of a packed tree. `begins` and `key_begins` (rows + 1,) are where queries and keys of each begin, of
    which it has at most `queries` and `keys`; `index` are the packed indices of the keys, None for the queries' own."""

    begins: torch.Tensor
    key_begins: torch.Tensor
    queries: int
    keys: int
    index: torch.Tensor | None


def require_flash(device: torch.device, dtype: torch.dtype) -> None:
    """Raise ModelError where flash-attn is not installed, or a model on `device` in `dtype` cannot use it."""
    if device.type != "cuda":
        refuse_flash(f"flash-attn has kernels for CUDA alone, and the model is on {device.type!r}")
    if dtype == torch.float32:
        refuse_flash("flash-attn computes in half precision, and astune.model.dtype is 'float32'")
    if (has := torch.cuda.get_device_capability(device)) < LEAST_CAPABILITY:
        refuse_flash(f"flash-attn needs a GPU of compute capability 8.0 or more, and this one has {has[0]}.{has[1]}")
    for problem in unusable(NEEDED_BY[FLASH]):
        refuse_flash(problem)


def refuse_flash(why: str) -> None:
    raise ModelError(f"astune.model.attention: got {FLASH!r}, but {why}; expected 'auto', 'sdpa' or 'eager'")


def unfit_for_flash(query: torch.Tensor, value: torch.Tensor, rule: Rule) -> str | None:
    """Why the kernels do not compute a layer, if they do not."""
    if rule.sinks is not None:
        return "its attention has sinks, which flash-attn does not compute"
    if query.shape[3] != value.shape[3]:
        return f"its queries have {query.shape[3]} numbers and its values {value.shape[3]}, which have to be as many"
    return (
        f"its heads have {query.shape[3]} numbers, at most {MOST_DIM} are computed"
        if query.shape[3] > MOST_DIM
        else None
    )


def attend_to_paths(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, paths: Paths, rule: Rule
) -> torch.Tensor:
    """`query` (1, heads, tokens, dim), `key` and `value` (1, key-value heads, tokens, dim) of a packed tree; returns
    (1, tokens, heads, dim)."""
    from flash_attn import flash_attn_varlen_func

    q, k, v = (states[0].transpose(0, 1).to(find_precision(query)) for states in (query, key, value))
    if paths.index is not None:
        k, v = k.index_select(0, paths.index), v.index_select(0, paths.index)
    sizes = paths.begins, paths.key_begins, paths.queries, paths.keys
    out: torch.Tensor = flash_attn_varlen_func(q, k, v, *sizes, **_make_options(rule))
    return out[None]


def attend_to_slots(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor, held: torch.Tensor, rule: Rule
) -> torch.Tensor:
    """`query` (n, heads, new tokens, dim) of rows in `slots` (n,) of the cache, `keys` and `values` (slots, key-value
    heads, positions, dim), whose first `held` (n,) positions count, the new tokens included; returns (n, new tokens,
    heads, dim)."""
    from flash_attn import flash_attn_with_kvcache

    q, k, v = (states.transpose(1, 2) for states in (query.to(keys.dtype), keys, values))
    out: torch.Tensor = flash_attn_with_kvcache(
        q, k, v, cache_seqlens=held.int(), cache_batch_idx=slots.int(), **_make_options(rule)
    )
    return out


def _make_options(rule: Rule) -> dict[str, object]:
    window = (-1, -1) if rule.window is None else (rule.window - 1, 0)
    softcap = 0.0 if rule.softcap is None else rule.softcap
    return {"softmax_scale": rule.scaling, "causal": True, "window_size": window, "softcap": softcap}
