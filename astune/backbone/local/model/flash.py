"""Attention by PyTorch's own kernels of FlashAttention-2 (arXiv 2307.08691), for CUDA in half precision: no masks, and
keys of the cache are read where they are.

    training   each stretch of new tokens is a row of its own behind the keys of its path: queries are the packed tokens
               as they stand, and the last query of a row sees its last key
    prompts    each key head of a slot of the cache is a row, whose queries are the new tokens of the query heads that
               share it
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from astune.backbone.local.model.attention import FLASH, Rule, find_precision
from astune.errors import ModelError

_forward = torch.ops.aten._flash_attention_forward
_backward = torch.ops.aten._flash_attention_backward
MOST_DIM, MULTIPLE = 256, 8
"""Numbers in a head that the kernels are made for: at most so many, and a multiple of so many."""
LEAST_CAPABILITY = (8, 0)
HALF = (torch.bfloat16, torch.float16)


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
    """Raise ModelError where a model on `device` in `dtype` cannot use the kernels."""
    if device.type != "cuda":
        refuse_flash(f"the kernels are for CUDA alone, and the model is on {device.type!r}")
    if dtype == torch.float32:
        refuse_flash("the kernels compute in half precision, and astune.model.dtype is 'float32'")
    if (has := torch.cuda.get_device_capability(device)) < LEAST_CAPABILITY:
        refuse_flash(f"the kernels need a GPU of compute capability 8.0 or more, and this one has {has[0]}.{has[1]}")


def refuse_flash(why: str) -> None:
    raise ModelError(f"astune.model.attention: got {FLASH!r}, but {why}; expected 'auto', 'sdpa' or 'eager'")


def uses_flash(query: torch.Tensor, value: torch.Tensor, rule: Rule) -> bool:
    """True if the kernels compute a layer: where they are asked for, and by themselves where they can."""
    if rule.kernel != "auto":
        return rule.kernel == FLASH
    if query.device.type != "cuda" or find_precision(query) not in HALF:
        return False
    return _is_able(query.device) and unfit_for_flash(query, value, rule) is None


@cache
def _is_able(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) >= LEAST_CAPABILITY


def unfit_for_flash(query: torch.Tensor, value: torch.Tensor, rule: Rule) -> str | None:
    """Why the kernels do not compute a layer, if they do not."""
    dim, of_values = query.shape[3], value.shape[3]
    if rule.sinks is not None:
        return "its attention has sinks, which the kernels do not compute"
    if rule.softcap is not None:
        return "its scores have a cap, which the kernels do not compute"
    if dim != of_values:
        return f"its queries have {dim} numbers and its values {of_values}, which have to be as many"
    if dim > MOST_DIM or dim % MULTIPLE:
        return f"its heads have {dim} numbers; multiples of {MULTIPLE} up to {MOST_DIM} are computed"
    return None


def attend_to_paths(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, paths: Paths, rule: Rule
) -> torch.Tensor:
    """`query` (1, heads, tokens, dim), `key` and `value` (1, key-value heads, tokens, dim) of a packed tree; returns
    (1, tokens, heads, dim)."""
    states = (each[0].transpose(0, 1).to(find_precision(query)) for each in (query, key, value))
    out: torch.Tensor = _ToPaths.apply(*states, paths, rule)  # type: ignore[no-untyped-call]
    return out[None]


class _ToPaths(torch.autograd.Function):
    """`query` (tokens, heads, dim), `key` and `value` (tokens, key-value heads, dim). The keys of the paths, which are
    many times those of the tree, are picked once more in the backward pass, and not kept. Gradients of a key that many
    paths share are summed up in float32."""

    @staticmethod
    def forward(
        ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, paths: Paths, rule: Rule
    ) -> torch.Tensor:
        sizes = paths.begins, paths.key_begins, paths.queries, paths.keys
        states = query, _pick(key, paths), _pick(value, paths)
        out, total, *chance = _forward(*states, *sizes, 0.0, True, False, **_make_options(rule))
        ctx.save_for_backward(query, key, value, out, total, *chance[:2])
        ctx.given = paths, rule
        found: torch.Tensor = out
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        query, key, value, out, total, *chance = ctx.saved_tensors
        paths, rule = ctx.given
        sizes = paths.begins, paths.key_begins, paths.queries, paths.keys
        states = query, _pick(key, paths), _pick(value, paths)
        of_query, *others = _backward(
            gradients[0].contiguous(), *states, out, total, *sizes, 0.0, True, *chance, **_make_options(rule)
        )
        of_key, of_value = (_gather_back(each, key, paths) for each in others)
        return of_query, of_key, of_value, None, None


def _pick(states: torch.Tensor, paths: Paths) -> torch.Tensor:
    return states if paths.index is None else states.index_select(0, paths.index)


def _gather_back(gradient: torch.Tensor, states: torch.Tensor, paths: Paths) -> torch.Tensor:
    """The gradient of `states` by that of what was picked of them."""
    if paths.index is None:
        return gradient
    whole = torch.zeros_like(states, dtype=torch.promote_types(states.dtype, torch.float32))
    return whole.index_add_(0, paths.index, gradient.to(whole.dtype)).to(states.dtype)


def attend_to_slots(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor, held: torch.Tensor, rule: Rule
) -> torch.Tensor:
    """`query` (n, heads, new tokens, dim) of rows in `slots` (n,) of the cache, `keys` and `values` (slots, key-value
    heads, positions, dim), whose first `held` (n,) positions count, the new tokens included; returns (n, new tokens,
    heads, dim)."""
    (n, heads, new, dim), (_, kv_heads, positions, _) = query.shape, keys.shape
    folded = query.to(keys.dtype).view(n, kv_heads, -1, new, dim).transpose(2, 3)
    rows = (slots[:, None] * kv_heads + torch.arange(kv_heads, device=slots.device)).flatten()
    key_begins = torch.cat([rows, rows[-1:] + 1]) * positions
    begins = torch.arange(len(rows) + 1, device=rows.device) * new
    out, *_ = _forward(
        folded.reshape(len(rows) * new, -1, dim),
        *(states.view(-1, 1, dim) for states in (keys, values)),
        *(begins.int(), key_begins.int(), new, positions, 0.0, True, False),
        seqused_k=held.int().repeat_interleave(kv_heads),
        **_make_options(rule),
    )
    return out.view(n, kv_heads, new, -1, dim).permute(0, 2, 1, 3, 4).reshape(n, new, heads, dim)  # type: ignore[no-any-return]


def _make_options(rule: Rule) -> dict[str, object]:
    options: dict[str, object] = {"scale": rule.scaling}
    return options if rule.window is None else options | {"window_size_left": rule.window - 1, "window_size_right": 0}
