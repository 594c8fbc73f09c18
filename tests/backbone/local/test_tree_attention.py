from __future__ import annotations

import math
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from astune.backbone.local.learning import prefix_tree
from astune.backbone.local.learning.prefix_tree import PackedTree, TreeLayout, find_shared_parts, pack
from astune.backbone.local.model.attention import Rule

CPU = torch.device("cpu")
STRETCHES = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), min_size=1, max_size=8)


def tree_of(stretches: list[list[int]], lengths: list[int]) -> PackedTree:
    """Rows of stretches; stretch n at one place is the same `lengths[n]` tokens in every row."""
    rows = [tuple(number for each in row for number in [each] * lengths[each]) for row in stretches]
    return pack(sorted(rows))


def seen_in(tree: PackedTree) -> torch.Tensor:
    """(queries, keys): whether a key lies on the way to a query."""
    seen = np.zeros((len(tree.tokens), len(tree.tokens)), bool)
    for path in tree.paths:
        seen[path[:, None], path[None]] |= np.tril(np.ones((len(path), len(path)), bool))
    return torch.from_numpy(seen)


def written_out(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, seen: torch.Tensor, scaling: float
) -> torch.Tensor:
    each = query.shape[1] // key.shape[1]
    keys, values = (states.repeat_interleave(each, dim=1) for states in (key, value))
    scores = (query @ keys.transpose(2, 3) * scaling).masked_fill(~seen, -math.inf)
    return (scores.softmax(-1) @ values).transpose(1, 2)


def states_of(tree: PackedTree, each: int, dtype: torch.dtype) -> list[torch.Tensor]:
    torch.manual_seed(0)
    count = len(tree.tokens)
    heads = (2 * each, 2, 2)
    return [(2 * torch.randn(1, of, count, 8, dtype=torch.float64)).to(dtype).requires_grad_() for of in heads]


def assert_exact(tree: PackedTree, each: int, dtype: torch.dtype, most: float) -> None:
    """Outputs and all three gradients are those of a softmax over the path that is written out in float64."""
    states = states_of(tree, each, dtype)
    doubles = [state.detach().double().requires_grad_() for state in states]
    found = TreeLayout(tree, CPU).attend(0, *states, Rule(0.3))
    expected = written_out(*doubles, seen_in(tree), 0.3)
    weights = torch.randn(expected.shape, dtype=torch.float64)
    (found.double() * weights).sum().backward()
    (expected * weights).sum().backward()
    pairs = [(found, expected), *((a.grad, b.grad) for a, b in zip(states, doubles, strict=True))]
    for one, other in pairs:
        assert one is not None and other is not None
        assert (one.double() - other).norm() < most * max(
            1.0, other.detach().norm().item()
        )  # a token alone: no gradient


@given(STRETCHES, st.lists(st.integers(1, 25), min_size=3, max_size=3), st.integers(1, 3), st.integers(1, 200))
def test_attention_in_parts_is_the_softmax_over_each_path(
    stretches: list[list[int]], lengths: list[int], each: int, area: int
) -> None:
    with patch.object(prefix_tree, "LEAST_SHARED", 1), patch.object(prefix_tree, "LEAST_AREA", area):
        assert_exact(tree_of(stretches, lengths), each, torch.float64, 1e-12)


@given(STRETCHES, st.lists(st.integers(1, 9), min_size=3, max_size=3))
def test_a_part_is_read_by_exactly_those_that_see_it(stretches: list[list[int]], lengths: list[int]) -> None:
    tree = tree_of(stretches, lengths)
    seen = seen_in(tree)
    with patch.object(prefix_tree, "LEAST_SHARED", 1), patch.object(prefix_tree, "LEAST_AREA", 1):
        parts = find_shared_parts(tree)
    for part in parts:
        assert bool(seen[part.stop : part.end, part.start : part.stop].all())
        assert not bool(seen[part.end :, part.stop - 1].any())
    if len(tree.segments) > 1 and any(start for _, start, _ in tree.segments):
        assert parts


def dropping(turns: int) -> PackedTree:
    """Two attempts of an agent whose reasoning is forgotten at each turn."""
    random, rows = np.random.default_rng(0), []
    for _ in range(2):
        history = [7] * 90
        for _ in range(turns):
            rows.append(tuple(history + random.integers(10, 1000, 150).tolist()))
            history += random.integers(10, 1000, 80).tolist()
    return pack(sorted(rows))


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 2e-6), (torch.bfloat16, 0.02)])
def test_an_agent_that_drops_its_reasoning_is_computed_in_parts_and_exactly(dtype: torch.dtype, most: float) -> None:
    tree = dropping(6)
    assert len(find_shared_parts(tree)) > 6
    assert_exact(tree, 2, dtype, most)
    with patch.object(prefix_tree, "LONG_WIDTH", 8):  # keys that are read where they are
        assert_exact(tree, 2, dtype, most)
