from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from astune.backbone.local.attention import ATTENTION
from astune.backbone.local.batch import micro_batches
from astune.backbone.local.prefix_tree import QUERY_BLOCK, pack, split
from astune.types import Sample, Span, Timeline

ROWS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8).map(tuple), min_size=1, max_size=8).map(sorted)


@given(ROWS)
def test_a_path_reads_its_row_and_no_prefix_is_stored_twice(rows: list[tuple[int, ...]]) -> None:
    tree = pack(rows)
    for row, path in zip(rows, tree.paths, strict=True):
        assert tuple(tree.tokens[path]) == row
        assert tree.positions[path].tolist() == list(range(len(row)))
    prefixes = {row[:length] for row in rows for length in range(1, len(row) + 1)}
    assert len(tree.tokens) == len(prefixes)


@given(ROWS, st.integers(1, 30))
def test_splitting_keeps_order_and_limit(rows: list[tuple[int, ...]], most: int) -> None:
    parts = list(split(rows, most))
    assert [index for part in parts for index in part] == list(range(len(rows)))
    for part in parts:
        assert len(part) == 1 or len(pack([rows[index] for index in part]).tokens) <= most


def sample(tokens: list[int], spans: list[tuple[int, int]], advantages: list[float], temperature: float) -> Sample:
    mask = [False] * len(tokens)
    for start, stop in spans:
        mask[start:stop] = [True] * (stop - start)
    logprobs = tuple(-1.0 if trained else 0.0 for trained in mask)
    found = tuple(Span(i, start, stop, 0, temperature, True) for i, (start, stop) in enumerate(spans))
    line = Timeline("agent", tuple(tokens), tuple(mask), logprobs, found)
    return Sample(line, tuple(advantages), 1 / 128, "task", "episode")


def branching_samples() -> list[Sample]:
    """Three groups that share a system prompt; attempts that part after some sampled tokens; two equal attempts."""
    random = np.random.default_rng(0)
    system = random.integers(0, 64, 2 * QUERY_BLOCK + 5).tolist()
    samples = []
    for group in range(3):
        question = system + random.integers(0, 64, 7 + group).tolist()
        first = random.integers(0, 64, 6).tolist()
        for attempt in range(4):
            answer = first[: attempt + 2] + random.integers(0, 64, 5 * attempt).tolist()
            tokens = question + answer + random.integers(0, 64, 3).tolist() + random.integers(0, 64, 4).tolist()
            spans = [(len(question), len(question) + len(answer)), (len(tokens) - 4, len(tokens))]
            samples.append(sample(tokens, spans, [attempt / 4 - 1, 1.0], 1.0 if group else 0.5))
    return [*samples, samples[0]]


def gradient_of_rows(model: Any, samples: list[Sample]) -> torch.Tensor:
    """Every row by itself through transformers' own attention."""
    model.set_attn_implementation("sdpa")
    model.zero_grad()
    for s in samples:
        ids = torch.tensor([s.timeline.token_ids])
        logits = model(input_ids=ids, use_cache=False).logits[0]
        loss = torch.zeros(())
        for span, advantage in zip(s.timeline.spans, s.advantages, strict=True):
            scaled = torch.log_softmax(logits[span.start - 1 : span.stop - 1].double() / span.temperature, -1)
            picked = scaled.gather(1, ids[0, span.start : span.stop, None])
            loss = loss - picked.sum() * advantage * s.weight
        loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def gradient_of_trees(model: Any, samples: list[Sample], most_tokens: int) -> torch.Tensor:
    model.set_attn_implementation(ATTENTION)
    model.zero_grad()
    for batch in micro_batches(samples, most_tokens, torch.device("cpu")):
        logits = model(
            input_ids=batch.tokens,
            position_ids=batch.positions,
            use_cache=False,
            logits_to_keep=batch.predictors,
            layout=batch.layout,
        ).logits[0]
        logprobs = torch.log_softmax(logits.double() / batch.temperatures[:, None], -1)
        (-(logprobs[batch.source, batch.target] * batch.advantage * batch.weight).sum()).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


@pytest.mark.parametrize("most_tokens", [10_000, 150])
def test_the_gradient_of_a_tree_is_that_of_its_rows(model: Any, most_tokens: int) -> None:
    model.double()  # so that only a wrong formula can differ by much; the norms of Qwen3 compute in float32 still
    samples = branching_samples()
    rows, trees = gradient_of_rows(model, samples), gradient_of_trees(model, samples, most_tokens)
    assert rows.norm() > 1e-3
    assert (rows - trees).norm() / rows.norm() < 1e-6
