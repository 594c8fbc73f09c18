"""Samples as tensors: a prefix tree, and one loss entry per (sample, trained token)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import torch

from astune.backbone.local.learning.prefix_tree import TreeLayout, pack, split
from astune.backbone.losses.entries import Entries, collect_trained, join, token_array
from astune.token_ids import TokenIds
from astune.types import Sample

LayoutName: TypeAlias = Literal["tree", "rows"]


@dataclass(frozen=True)
class MicroBatch:
    """`tokens`, `positions` (1, packed). `layout` says which of them attend to which; None: they are one row, and
    attention is the model's own. `predictors` (p,) are the packed indices whose logits are needed, each at one
    temperature `temperatures` (p,); `heated` says whether one of those is not 1, which only the host knows without
    waiting for a GPU. The loss entries, all (e,): `source` indexes `predictors`, `target` is the token
    that was sampled, `sampled` its recorded log-probability, `version` the policy's that sampled it, `advantage` and
    `weight` its credit, `row` the number of its sample within `samples`. They stand in the order of `samples` (numbers
    of the samples of the update), of their spans with weight, and of the tokens. All are `imitated`, or none is."""

    samples: tuple[int, ...]
    layout: TreeLayout | None
    tokens: torch.Tensor
    positions: torch.Tensor
    predictors: torch.Tensor
    temperatures: torch.Tensor
    heated: bool
    source: torch.Tensor
    target: torch.Tensor
    sampled: torch.Tensor
    advantage: torch.Tensor
    weight: torch.Tensor
    version: torch.Tensor
    row: torch.Tensor
    imitated: bool = False

    def entries(self, logprob: torch.Tensor, policy_version: int) -> Entries:
        """The loss entries under the weights that gave `logprob` (e,). `policy_version` is that of the weights in
        training: the sampler's, and one more for each update since it got them."""
        return Entries(logprob, self.sampled, self.advantage, self.row, policy_version - self.version)


def micro_batches(
    samples: Sequence[Sample], most_tokens: int, device: torch.device, layout: LayoutName = "tree"
) -> Iterator[MicroBatch]:
    """Sort samples so that shared prefixes meet, and cut them into trees of at most `most_tokens` tokens; with layout
    "rows" each sample is a batch of its own. Those that are imitated come last, by themselves."""
    for imitated in (False, True):
        packed = [
            (TokenIds.of(sample.timeline.token_ids).pack(), number)
            for number, sample in enumerate(samples)
            if sample.imitated is imitated
        ]
        order = sorted(packed)  # bytewise, which brings equal beginnings together as well as any order does
        trees = split([np.frombuffer(data, np.int32) for data, _ in order], most_tokens) if order else []
        for part in trees if layout == "tree" else (range(index, index + 1) for index in range(len(order))):
            numbers = tuple(order[index][1] for index in part)
            yield micro_batch(numbers, samples, device, layout)


def micro_batch(
    numbers: Sequence[int], all_samples: Sequence[Sample], device: torch.device, layout: LayoutName
) -> MicroBatch:
    """Make one tree of the samples with these `numbers`, which are sorted so that equal beginnings stand together."""
    samples = [all_samples[number] for number in numbers]
    tree = pack([token_array(sample) for sample in samples])
    parts = [collect_trained(sample) for sample in samples]
    entries = join(parts)
    before = np.concatenate([path[each.place - 1] for each, path in zip(parts, tree.paths, strict=True)])
    row = np.repeat(np.arange(len(samples)), [len(each.place) for each in parts])
    # One row of logits serves all entries after the same token, as long as they were sampled at one temperature.
    pairs, source = np.unique(np.stack([before, entries.temperature]), axis=1, return_inverse=True)

    def tensor(array: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
        return torch.as_tensor(array, device=device).to(dtype)

    return MicroBatch(
        samples=tuple(numbers),
        layout=TreeLayout(tree, device) if layout == "tree" else None,
        tokens=tensor(tree.tokens, torch.long)[None],
        positions=tensor(tree.positions, torch.long)[None],
        predictors=tensor(pairs[0], torch.long),
        temperatures=tensor(pairs[1], torch.float32),
        heated=bool((pairs[1] != 1).any()),
        source=tensor(source.reshape(-1), torch.long),
        target=tensor(entries.target, torch.long),
        sampled=tensor(entries.sampled, torch.float32),
        advantage=tensor(entries.advantage, torch.float32),
        weight=tensor(entries.weight, torch.float32),
        version=tensor(entries.version, torch.long),
        row=tensor(row, torch.long),
        imitated=samples[0].imitated,
    )
