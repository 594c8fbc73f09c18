"""Attention over prefix trees, forward and backward pass of one layer: as ASTune computes it, on a GPU with flash
attention and with masks, by PyTorch's FlexAttention, and over the padded rows with the fused causal
kernel.

FlexAttention is no part of ASTune: it has to be compiled for a GPU, and none was there to run it. Uncompiled, on a CPU,
its output and gradients are ASTune's; this part says what it gains where it is compiled, for whoever decides then.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from gpu.job import Job
from gpu.machine import timed
from gpu.shapes import shape as shape_of
from torch.nn.attention import flex_attention
from torch.nn.functional import pad, scaled_dot_product_attention
from training_step import agents, synthetic

from astune.backbone.local.learning.prefix_tree import PackedTree, TreeLayout, pack
from astune.backbone.local.model.attention import FUSED, Rule
from astune.types import Sample

SHAPES = ((2, 8, 2048, 256), (1, 4, 16384, 512))
MASKS = "ASTune, with masks"
FORKED = "reasoning dropped"
TINY = ((2, 4, 32, 8),)
ROUNDS = 5

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Of query (1, heads, tokens, dim), key and value (1, key heads, tokens, dim) in packed order to (1, tokens, heads,
dim); of rows (rows, longest, heads, dim)."""


def run(job: Job) -> None:
    trees = {"{} x {} ({} + {})".format(*each): synthetic(*each) for each in (TINY if job.tiny else SHAPES)}
    for name, samples in (trees if job.tiny else trees | {FORKED: agents()[FORKED]}).items():
        _compare(job, name, pack(sorted(tuple(sample.timeline.token_ids) for sample in samples)), samples)


def _compare(job: Job, name: str, tree: PackedTree, samples: list[Sample]) -> None:
    config = shape_of("tiny" if job.tiny else "0.6B").config
    heads, kv_heads, dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    ways = {"ASTune": ours, "rows": of_rows, "FlexAttention": by_flex}
    ways |= {MASKS: partial(ours, kernel=FUSED)} if job.device.type == "cuda" else {}
    torch.manual_seed(0)
    states = [
        torch.randn(1, count, len(tree.tokens), dim, dtype=job.dtype, device=job.device, requires_grad=True)
        for count in (heads, kv_heads, kv_heads)
    ]
    expected: list[torch.Tensor] = []
    usual = 0.0
    for who, make in ways.items():
        job.forget_memory()
        started = time.perf_counter()
        work = partial(gradients, make(tree, job.device), states)
        found = work()
        job.finish()
        first, most = time.perf_counter() - started, job.most_gib()
        seconds = timed(job, work, repeats=ROUNDS)
        expected, usual = expected or found, usual or seconds
        row = {"tree": name, "R": sum(len(each.timeline.token_ids) for each in samples) / len(tree.tokens), "who": who}
        row |= {"ms": 1e3 * seconds, "times ASTune's": usual / seconds, "first call, s": first, "most GiB": most}
        if who != "rows":  # whose gradient of the output is another
            row["off, of the norm"] = max(map(distance, found, expected))
        job.row("", row)


def gradients(attend: Attend, states: list[torch.Tensor]) -> list[torch.Tensor]:
    """The output and the gradients of query, key and value; that of the output are the sines of its places."""
    out = attend(*states)
    up = torch.arange(out.numel(), device=out.device).sin().view(out.shape).to(out.dtype)
    return [out.detach(), *torch.autograd.grad(out, states, up)]


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


def ours(tree: PackedTree, device: torch.device, kernel: str = "auto") -> Attend:
    layout = TreeLayout(tree, device)
    return lambda query, key, value: layout.attend(0, query, key, value, Rule(query.shape[3] ** -0.5, kernel=kernel))


def by_flex(tree: PackedTree, device: torch.device) -> Attend:
    """The tokens that see one follow it in packed order without a gap, so a mask needs but where they end."""
    size, ends = len(tree.tokens), torch.as_tensor(ends_of(tree), device=device)

    def seen(batch: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return (key <= query) & (query < ends[key])

    attention = flex_attention.flex_attention
    on_gpu = device.type == "cuda"
    computed = torch.compile(attention, dynamic=False) if on_gpu else _with_gradients_on_a_cpu(attention)
    mask = flex_attention.create_block_mask(seen, None, None, size, size, device=device)
    return lambda query, key, value: computed(query, key, value, block_mask=mask, enable_gqa=True).transpose(1, 2)


def _with_gradients_on_a_cpu(attention: Callable[..., Any]) -> Callable[..., Any]:
    """Uncompiled it has a backward pass there, but PyTorch refuses to compute what it might be asked for."""

    def allowed(*states: torch.Tensor, **options: Any) -> Any:
        with patch.object(flex_attention, "_validate_device"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it says that uncompiled it is slow
            return attention(*states, **options)

    return allowed


def ends_of(tree: PackedTree) -> np.ndarray:
    """For each packed token the place behind the last one that sees it.

    >>> ends_of(pack([(1, 2, 3), (1, 2, 4), (5,)])).tolist()
    [4, 4, 3, 4, 5]
    """
    ends = np.arange(len(tree.tokens)) + 1
    for row, _, stop in tree.segments:
        path = tree.paths[row][:stop]
        ends[path] = path[-1] + 1
    return ends


def of_rows(tree: PackedTree, device: torch.device) -> Attend:
    """Each row by itself, behind it zeros up to the longest."""
    longest = max(map(len, tree.paths))

    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        def rows(states: torch.Tensor) -> torch.Tensor:
            return torch.stack([pad(states[0][:, path], (0, 0, 0, longest - len(path))) for path in tree.paths])

        return scaled_dot_product_attention(
            rows(query), rows(key), rows(value), is_causal=True, enable_gqa=True
        ).transpose(1, 2)

    return attend
