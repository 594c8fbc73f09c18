"""The two functions of flash-attn that are used, written out: what they take and give is flash-attn's (2.8.3)."""

from __future__ import annotations

from importlib.machinery import ModuleSpec
from types import ModuleType

import torch


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    window: tuple[int, int],
    softcap: float,
) -> torch.Tensor:
    """One row: (queries, heads, dim) and (keys, key heads, dim); the last query sees the last key."""
    each = query.shape[1] // key.shape[1]
    keys, values = key.repeat_interleave(each, dim=1), value.repeat_interleave(each, dim=1)
    scores = torch.einsum("qhd,khd->hqk", query, keys) * scale
    if softcap:
        scores = torch.tanh(scores / softcap) * softcap
    stands = torch.arange(len(query))[:, None] + len(key) - len(query)
    places = torch.arange(len(key))
    seen = places <= stands
    if window[0] >= 0:
        seen &= places >= stands - window[0]
    weights = torch.softmax(scores.masked_fill(~seen, -torch.inf), dim=2)
    return torch.einsum("hqk,khd->qhd", weights, values)


def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    softmax_scale: float,
    causal: bool,
    window_size: tuple[int, int],
    softcap: float,
) -> torch.Tensor:
    assert causal and q.stride(-1) == k.stride(-1) == v.stride(-1) == 1 and q.dtype == k.dtype == v.dtype
    begins, key_begins = (_ints(each) for each in (cu_seqlens_q, cu_seqlens_k))
    assert begins[0] == key_begins[0] == 0 and begins[-1] == len(q) and key_begins[-1] == len(k) == len(v)
    rows = [
        (q[begins[n] : begins[n + 1]], *(each[key_begins[n] : key_begins[n + 1]] for each in (k, v)))
        for n in range(len(begins) - 1)
    ]
    assert max(len(row[0]) for row in rows) == max_seqlen_q and max(len(row[1]) for row in rows) == max_seqlen_k
    return torch.cat([_attend(*row, softmax_scale, window_size, softcap) for row in rows])


def flash_attn_with_kvcache(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    *,
    cache_seqlens: torch.Tensor,
    cache_batch_idx: torch.Tensor,
    softmax_scale: float,
    causal: bool,
    window_size: tuple[int, int],
    softcap: float,
) -> torch.Tensor:
    assert causal and q.stride(-1) == k_cache.stride(-1) == v_cache.stride(-1) == 1
    assert q.dtype == k_cache.dtype == v_cache.dtype and k_cache.shape == v_cache.shape
    held, slots = _ints(cache_seqlens), _ints(cache_batch_idx)
    rows = [(q[row], *(cache[slot, : held[row]] for cache in (k_cache, v_cache))) for row, slot in enumerate(slots)]
    return torch.stack([_attend(*row, softmax_scale, window_size, softcap) for row in rows])


def _ints(tensor: torch.Tensor) -> list[int]:
    assert tensor.dtype == torch.int32 and tensor.is_contiguous()
    return [int(each) for each in tensor]


def stand_in() -> ModuleType:
    """A module to put in the place of flash-attn's."""
    module = ModuleType("flash_attn")
    module.__spec__ = ModuleSpec("flash_attn", None)
    module.__dict__.update(
        flash_attn_varlen_func=flash_attn_varlen_func, flash_attn_with_kvcache=flash_attn_with_kvcache
    )
    return module
