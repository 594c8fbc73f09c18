"""PyTorch's kernels of flash attention written out: what they take and give, on a CPU and in any precision."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from astune.backbone.local.model import flash


def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, window: int | None
) -> torch.Tensor:
    """One row: (queries, heads, dim) and (keys, key heads, dim); the last query sees the last key."""
    each = query.shape[1] // key.shape[1]
    keys, values = key.repeat_interleave(each, dim=1), value.repeat_interleave(each, dim=1)
    scores = torch.einsum("qhd,khd->hqk", query, keys) * scale
    stands = torch.arange(len(query))[:, None] + len(key) - len(query)
    places = torch.arange(len(key))
    seen = places <= stands
    if window is not None:
        seen &= places >= stands - window
    weights = torch.softmax(scores.masked_fill(~seen, -torch.inf), dim=2)
    return torch.einsum("hqk,khd->qhd", weights, values)


def forward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cum_seq_q: torch.Tensor,
    cum_seq_k: torch.Tensor,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    return_debug_mask: bool,
    *,
    scale: float,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
    seqused_k: torch.Tensor | None = None,
) -> tuple[torch.Tensor, ...]:
    assert is_causal and not dropout_p and not return_debug_mask and query.dtype == key.dtype == value.dtype
    assert query.stride(-1) == key.stride(-1) == value.stride(-1) == 1
    assert window_size_right == (None if window_size_left is None else 0)
    begins, key_begins = (_ints(each) for each in (cum_seq_q, cum_seq_k))
    assert begins[0] == 0 and begins[-1] == len(query) and len(begins) == len(key_begins)
    ends = key_begins[1:]
    if seqused_k is None:
        assert key_begins[0] == 0 and key_begins[-1] == len(key) == len(value)
    else:
        ends = [begin + used for begin, used in zip(key_begins, _ints(seqused_k), strict=False)]
        assert len(_ints(seqused_k)) == len(begins) - 1 and max(ends) <= len(key)
    rows = [
        (query[begins[n] : begins[n + 1]], *(each[key_begins[n] : ends[n]] for each in (key, value)))
        for n in range(len(begins) - 1)
    ]
    assert max(len(row[0]) for row in rows) == max_q and max(len(row[1]) for row in rows) <= max_k
    out = torch.cat([_attend(*row, scale, window_size_left) for row in rows])
    return out, torch.zeros(query.shape[1], len(query)), torch.zeros(2), torch.zeros(0), torch.zeros(0)


def backward(
    gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    *rest: Any,
    **options: Any,
) -> tuple[torch.Tensor, ...]:
    *sizes, dropout_p, is_causal, _, _ = rest
    assert gradient.is_contiguous() and out.shape == gradient.shape and logsumexp.shape == (query.shape[1], len(query))
    with torch.enable_grad():
        states = [each.detach().requires_grad_() for each in (query, key, value)]
        found, *_ = forward(*states, *sizes, dropout_p, is_causal, False, **options)
        return torch.autograd.grad(found, states, gradient)


def _ints(tensor: torch.Tensor) -> list[int]:
    assert tensor.dtype == torch.int32 and tensor.is_contiguous()
    return [int(each) for each in tensor]


def use_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put what is written out here in the place of the kernels."""
    monkeypatch.setattr(flash, "_forward", forward)
    monkeypatch.setattr(flash, "_backward", backward)
