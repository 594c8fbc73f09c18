"""Attention over a packed tree in parts, on the CPU: keys that many branches share are read once and where they are.

The tokens below a stretch of a tree follow it without a gap, and all of them see all of it. So queries and keys of
such a part are slices, and it needs no mask. What is left of a token's path is computed in blocks with a mask. A part
gives the logarithm of its sum of exponentials too, by which its output is weighed against the others': together they
are the softmax over the whole path. The backward pass of a part takes output and logarithm of the whole, and so gives
that part's share of the exact gradient (so does FlashAttention with its blocks).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


@dataclass(frozen=True)
class TreeBlock:
    """Queries (n, q) and keys (n, k) as packed indices, padded with 0, or keys of one piece as a slice; `seen`
    (n, 1, q, k); `padding` (n, q)."""

    queries: torch.Tensor
    keys: torch.Tensor | slice
    seen: torch.Tensor
    padding: torch.Tensor


@dataclass(frozen=True)
class SharedKeys:
    """The packed tokens from `start` to `stop`, whose keys are seen by all tokens from `stop` to `end`."""

    start: int
    stop: int
    end: int


@dataclass(frozen=True)
class TreeParts:
    """`blocks` and `shared` are all that is seen, no key twice by one query. `where` is, for each packed token, the
    place of its query among those of all blocks."""

    blocks: tuple[TreeBlock, ...]
    shared: tuple[SharedKeys, ...]
    where: torch.Tensor


def attend_in_parts(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    parts: TreeParts,
    masks: Sequence[torch.Tensor],
    scaling: float,
) -> torch.Tensor:
    """`query` (heads, tokens, dim), `key` and `value` (key-value heads, tokens, dim); `masks` are additive, one for
    each block, with a row for each query head that shares a key head, those of one query together. Returns
    (tokens, heads, dim)."""
    heads, tokens, dim = query.shape
    folded = query.view(len(key), -1, tokens, dim).permute(2, 1, 0, 3).contiguous()
    keys, values = key.transpose(0, 1).contiguous(), value.transpose(0, 1).contiguous()
    out: torch.Tensor = _InParts.apply(folded, keys, values, parts, masks, scaling)  # type: ignore[no-untyped-call]
    return out.transpose(1, 2).reshape(tokens, heads, dim)


class _InParts(torch.autograd.Function):
    """`query` (tokens, query heads per key head, key heads, dim), `key` and `value` (tokens, key heads, dim)."""

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        parts: TreeParts,
        masks: Sequence[torch.Tensor],
        scaling: float,
    ) -> torch.Tensor:
        outputs, sums = [], []
        for block, mask in zip(parts.blocks, masks, strict=True):
            states = _pick_queries(query, block), gather(key, block.keys), gather(value, block.keys)
            found, total = _forward(*states, attn_mask=mask, scale=scaling)
            outputs.append(_unfold(found, query))
            sums.append(total.transpose(1, 2).reshape(-1, *query.shape[1:3]))
        sum_of = torch.cat(sums).index_select(0, parts.where)
        out = torch.cat(outputs).index_select(0, parts.where).to(sum_of.dtype)
        for each in parts.shared:
            below, at = slice(each.stop, each.end), slice(each.start, each.stop)
            found, total = _forward(
                _flatten_rows(query[below]), _put_heads_first(key[at]), _put_heads_first(value[at]), scale=scaling
            )
            more = total.transpose(1, 2).reshape(-1, *query.shape[1:3])
            out[below].lerp_(_unfold(found, query).to(out.dtype), torch.sigmoid(more - sum_of[below])[..., None])
            sum_of[below] = torch.logaddexp(sum_of[below], more)
        out = out.to(query.dtype)
        ctx.save_for_backward(query, key, value, out, sum_of)
        ctx.given = parts, masks, scaling
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        query, key, value, out, sum_of = ctx.saved_tensors
        parts, masks, scaling = ctx.given
        gradient = gradients[0].contiguous()
        of_query, of_key, of_value = (torch.zeros_like(each, dtype=sum_of.dtype) for each in (query, key, value))
        for block, mask in zip(parts.blocks, masks, strict=True):
            states = _pick_queries(query, block), gather(key, block.keys), gather(value, block.keys)
            total = sum_of.index_select(0, block.queries.flatten()).view(*block.queries.shape, *sum_of.shape[1:])
            # A query that stands for nothing: the exponential of minus infinity, so that all its shares are 0.
            total = total.masked_fill(block.padding[:, :, None, None], torch.inf).flatten(1, 2).transpose(1, 2)
            ends = _pick_queries(out, block), total
            found = _backward(_pick_queries(gradient, block), *states, *ends, 0.0, False, attn_mask=mask, scale=scaling)
            of_query.index_add_(0, block.queries.flatten(), _unfold(found[0], query).to(of_query.dtype))
            for whole, part in ((of_key, found[1]), (of_value, found[2])):
                rows = part.transpose(1, 2).flatten(0, 1).to(whole.dtype)
                if isinstance(block.keys, slice):
                    whole[block.keys] += rows
                else:
                    whole.index_add_(0, block.keys.flatten(), rows)
        for each in parts.shared:
            below, at = slice(each.stop, each.end), slice(each.start, each.stop)
            states = _flatten_rows(query[below]), _put_heads_first(key[at]), _put_heads_first(value[at])
            ends = _flatten_rows(out[below]), sum_of[below].flatten(0, 1).t()[None]
            found = _backward(_flatten_rows(gradient[below]), *states, *ends, 0.0, False, scale=scaling)
            of_query[below] += _unfold(found[0], query)
            of_key[at] += found[1][0].transpose(0, 1)
            of_value[at] += found[2][0].transpose(0, 1)
        return of_query.to(query.dtype), of_key.to(key.dtype), of_value.to(value.dtype), None, None, None


def _pick_queries(states: torch.Tensor, block: TreeBlock) -> torch.Tensor:
    """(tokens, shared, heads, dim) as (n, heads, queries x shared, dim)."""
    picked = states.index_select(0, block.queries.flatten())
    return picked.view(len(block.queries), -1, *states.shape[2:]).transpose(1, 2)


def gather(states: torch.Tensor, index: torch.Tensor | slice) -> torch.Tensor:
    """(tokens, heads, dim) at `index` (n, k) as (n, heads, k, dim); n is 1 for a slice."""
    if isinstance(index, slice):
        return _put_heads_first(states[index])
    picked = states.index_select(0, index.flatten())
    return picked.view(*index.shape, *states.shape[1:]).transpose(1, 2)


def _flatten_rows(states: torch.Tensor) -> torch.Tensor:
    """(tokens, shared, heads, dim) as (1, heads, tokens x shared, dim)."""
    return _put_heads_first(states.flatten(0, 1))


def _put_heads_first(states: torch.Tensor) -> torch.Tensor:
    return states.transpose(0, 1)[None]


def _unfold(found: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """(n, heads, queries x shared, dim) as (n x queries, shared, heads, dim)."""
    return found.transpose(1, 2).reshape(-1, *query.shape[1:])
