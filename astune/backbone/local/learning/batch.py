"""Samples as tensors: a prefix tree, and one loss entry per (sample, trained token)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import torch

from astune.backbone.local.learning.prefix_tree import TreeLayout, pack, split
from astune.errors import TrainingError
from astune.token_ids import TokenIds
from astune.types import Sample

LayoutName: TypeAlias = Literal["tree", "rows"]


@dataclass(frozen=True)
class MicroBatch:
    """`tokens`, `positions` (1, packed). `layout` says which of them attend to which; None: they are one row, and
    attention is the model's own. `predictors` (p,) are the packed indices whose logits are needed, each at one
    temperature `temperatures` (p,). The loss entries, all (e,): `source` indexes `predictors`, `target` is the token
    that was sampled, `sampled` its recorded log-probability, `version` the policy's that sampled it, `advantage` and
    `weight` its credit, `row` the number of its sample within `samples`. They stand in the order of `samples` (numbers
    of the samples of the update), of their spans with weight, and of the tokens. All are `imitated`, or none is."""

    samples: tuple[int, ...]
    layout: TreeLayout | None
    tokens: torch.Tensor
    positions: torch.Tensor
    predictors: torch.Tensor
    temperatures: torch.Tensor
    source: torch.Tensor
    target: torch.Tensor
    sampled: torch.Tensor
    advantage: torch.Tensor
    weight: torch.Tensor
    version: torch.Tensor
    row: torch.Tensor
    imitated: bool = False


def micro_batches(
    samples: Sequence[Sample], most_tokens: int, device: torch.device, layout: LayoutName = "tree"
) -> Iterator[MicroBatch]:
    """Sort samples so that shared prefixes meet, and cut them into trees of at most `most_tokens` tokens; with layout
    "rows" each sample is a batch of its own. Those that are imitated come last, by themselves."""
    for imitated in (False, True):
        packed = [
            (TokenIds.of(sample.timeline.token_ids).packed(), number)
            for number, sample in enumerate(samples)
            if sample.imitated is imitated
        ]
        order = sorted(packed)  # bytewise, which brings equal beginnings together as well as any order does
        trees = split([_array(data) for data, _ in order], most_tokens) if order else []
        for part in trees if layout == "tree" else (range(index, index + 1) for index in range(len(order))):
            numbers = tuple(order[index][1] for index in part)
            yield micro_batch(numbers, samples, device, layout)


def micro_batch(
    numbers: Sequence[int], all_samples: Sequence[Sample], device: torch.device, layout: LayoutName
) -> MicroBatch:
    """Those `numbers` of all samples, which are sorted so that equal beginnings stand together, as one tree."""
    samples = [all_samples[number] for number in numbers]
    tree = pack([_array(TokenIds.of(sample.timeline.token_ids).packed()) for sample in samples])
    entries = [_entries(sample, path) for sample, path in zip(samples, tree.paths, strict=True)]
    before, target, sampled, advantage, weight, temperature, version = (
        np.concatenate(column) for column in zip(*entries, strict=True)
    )
    row = np.repeat(np.arange(len(samples)), [len(columns[0]) for columns in entries])
    # One row of logits serves all entries after the same token, as long as they were sampled at one temperature.
    pairs, source = np.unique(np.stack([before, temperature]), axis=1, return_inverse=True)

    def tensor(array: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
        return torch.as_tensor(array, device=device).to(dtype)

    return MicroBatch(
        samples=tuple(numbers),
        layout=TreeLayout(tree, device) if layout == "tree" else None,
        tokens=tensor(tree.tokens, torch.long)[None],
        positions=tensor(tree.positions, torch.long)[None],
        predictors=tensor(pairs[0], torch.long),
        temperatures=tensor(pairs[1], torch.float32),
        source=tensor(source.reshape(-1), torch.long),
        target=tensor(target, torch.long),
        sampled=tensor(sampled, torch.float32),
        advantage=tensor(advantage, torch.float32),
        weight=tensor(weight, torch.float32),
        version=tensor(version, torch.long),
        row=tensor(row, torch.long),
        imitated=samples[0].imitated,
    )


def _array(packed: bytes) -> np.ndarray:
    return np.frombuffer(packed, np.int32)


def _entries(sample: Sample, path: np.ndarray) -> tuple[np.ndarray, ...]:
    """Packed index before each trained token, the token, its log-probability, advantage, weight, temperature,
    version."""
    tokens = _array(TokenIds.of(sample.timeline.token_ids).packed())
    columns = []
    for span, advantage, weight in zip(sample.timeline.spans, sample.advantages, sample.weights, strict=True):
        if weight and len(span):
            if span.start == 0:
                raise TrainingError(f"turn {span.turn} of {sample.episode_id} has an empty prompt: nothing predicts it")
            whole = np.ones(len(span))
            places = slice(span.start, span.stop)
            before = path[span.start - 1 : span.stop - 1]
            logprobs = np.asarray(span.logprobs)
            given = (advantage, weight, span.temperature, span.policy_version)
            columns.append((before, tokens[places], logprobs, *(whole * value for value in given)))
    return tuple(np.concatenate(column) for column in zip(*columns, strict=True))
