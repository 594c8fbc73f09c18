"""Attention of one query of each row, by products or by the fused kernel, is the formula."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from astune.backbone.local.model import attention
from astune.backbone.local.model.attention import FEW_HEADS, Rule, additive_mask, attend_in_groups
from tests.rows import each_row


@settings(max_examples=80, deadline=None)
@given(
    rows=st.integers(1, 9),
    kv_heads=st.integers(1, 3),
    each=st.integers(1, 3),
    held=st.integers(1, 12),
    spare=st.integers(0, 3),
    of_amd=st.booleans(),
    seed=st.integers(0, 99),
)
def test_one_query_of_each_row_sees_its_own_keys_as_the_formula_says(
    rows: int, kv_heads: int, each: int, held: int, spare: int, of_amd: bool, seed: int
) -> None:
    """Keys are a part of a longer store, as in the cache, and what stands behind a row's own counts for nothing."""
    chance = torch.Generator().manual_seed(seed)
    query = torch.randn(rows, kv_heads * each, 1, 8, generator=chance)
    store = torch.randn(2, rows, kv_heads, held + spare, 8, generator=chance)
    lengths = torch.randint(1, held + 1, (rows,), generator=chance)
    keys, values = store[0, :, :, :held], store[1, :, :, :held]
    seen = (torch.arange(held) < lengths[:, None])[:, None, None]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "is_of_amd", lambda: of_amd)
        found = attend_in_groups(query, keys, values, additive_mask(seen, query, keys), Rule(0.3))
    for row, length in enumerate(lengths.tolist()):
        for head in range(kv_heads * each):
            key, value = (part[row, head // each, :length].double() for part in (keys, values))
            weights = (0.3 * key @ query[row, head, 0].double()).softmax(0)
            torch.testing.assert_close(found[row, 0, head].double(), weights @ value, atol=1e-5, rtol=1e-5)


@each_row(
    ("of_amd", "rows", "queries", "kernel", "fused"),
    [
        (True, FEW_HEADS + 1, 1, "auto", False),
        (True, FEW_HEADS, 1, "auto", True),
        (True, FEW_HEADS + 1, 2, "auto", True),
        (False, FEW_HEADS + 1, 1, "auto", True),
        (True, FEW_HEADS + 1, 1, "sdpa", True),
        (False, FEW_HEADS, 2, "eager", False),
    ],
)
def test_products_are_taken_where_they_are_quicker_or_asked_for(
    of_amd: bool, rows: int, queries: int, kernel: str, fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "is_of_amd", lambda: of_amd)
    states = torch.randn(rows, 1, queries, 8)
    mask = additive_mask(torch.ones(rows, 1, queries, queries, dtype=torch.bool), states, states)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        attend_in_groups(states, states, states, mask, Rule(0.3, kernel=kernel))
    called = {event.key for event in profile.key_averages()}
    assert ("aten::scaled_dot_product_attention" in called) == fused
    assert ("aten::bmm" in called) != fused
