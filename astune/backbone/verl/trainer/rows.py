"""Samples as rows of verl: every column one nested tensor, as long as the row's tokens, nothing padded.

sample            tokens up to the last that is trained; a row for each temperature, as verl scales whole rows
filler            two tokens without loss, as every rank gets equally many rows
batch             the rows of rank 0, then those of rank 1, ..., about equally many tokens each
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import numpy as np
import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils

from astune.backbone.losses.entries import TrainedTokens, collect_trained, token_array
from astune.errors import TrainingError
from astune.types import Sample


@dataclass(frozen=True)
class SampleRow:
    """`sample` is the number of the sample it is of, None for a filler. All `entries` have one temperature; `numbers`
    says which of the sample's entries they are."""

    sample: int | None
    tokens: np.ndarray
    entries: TrainedTokens
    numbers: np.ndarray
    temperature: float
    imitated: bool


NOTHING = np.zeros(0)
FILLER = SampleRow(
    None,
    np.zeros(2, np.int32),
    TrainedTokens(*[NOTHING.astype(np.int64)] * 2, *[NOTHING] * 5),
    NOTHING.astype(np.int64),
    1.0,
    False,
)


def rows_of(samples: Sequence[Sample], *, whole: bool) -> list[SampleRow]:
    """Raises TrainingError where a sample has tokens of several temperatures and the loss needs its row `whole`."""
    rows = []
    for number, sample in enumerate(samples):
        entries = collect_trained(sample)
        tokens = token_array(sample)[: entries.place[-1] + 1]
        temperatures = np.unique(entries.temperature).tolist()
        if whole and len(temperatures) > 1:
            raise TrainingError(
                f"episode {sample.episode_id} has tokens of several temperatures ({temperatures}) in one conversation, "
                "and the loss is one over whole conversations: verl scales a row by one temperature. Use one "
                "temperature, another astune.algorithm.loss, or the backbone 'local'"
            )
        for temperature in temperatures:
            numbers = np.flatnonzero(entries.temperature == temperature)
            own = TrainedTokens(*(column[numbers] for column in entries))
            rows.append(SampleRow(number, tokens, own, numbers, temperature, sample.imitated))
    return rows


def share_out(rows: Sequence[SampleRow], ranks: int) -> list[SampleRow]:
    """The same rows and fillers in the order of the ranks: equally many each, of about equally many tokens."""
    most = -(-len(rows) // ranks)
    piles: list[list[SampleRow]] = [[] for _ in range(ranks)]
    tokens = [0] * ranks
    for row in sorted(rows, key=lambda row: -len(row.tokens)):
        lightest = min((rank for rank in range(ranks) if len(piles[rank]) < most), key=lambda rank: tokens[rank])
        piles[lightest].append(row)
        tokens[lightest] += len(row.tokens)
    return [row for pile in piles for row in [*pile, *[FILLER] * (most - len(pile))]]


def batch_of(
    rows: Sequence[SampleRow],
    most_tokens: int,
    *,
    learn: bool = True,
    sharing: int = 1,
    version: int = 0,
    more: Mapping[str, Sequence[np.ndarray]] = MappingProxyType({}),
) -> TensorDict:
    """The batch that verl's workers get, to `learn` from or to tell the log-probabilities of. `most_tokens` is how many
    a rank computes at once, or its part of a row that has more, which `sharing` ranks have together; `version` that of
    the weights in training; `more` are columns besides, or in the place of those here: the values of each row's entries
    by name."""

    nested = partial(torch.nested.as_nested_tensor, layout=torch.jagged)
    entries = [row.entries for row in rows]

    def column(values: Iterable[np.ndarray], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        columns = []
        for row, own in zip(rows, values, strict=True):
            whole = torch.zeros(len(row.tokens), dtype=dtype)
            whole[torch.from_numpy(row.entries.place)] = torch.as_tensor(own, dtype=dtype)
            columns.append(whole)
        return nested(columns)

    columns = {
        "input_ids": nested([torch.from_numpy(row.tokens.astype(np.int64)) for row in rows]),
        "position_ids": nested([torch.arange(len(row.tokens)) for row in rows]),
        "loss_mask": column((np.ones(len(each.place)) for each in entries), torch.int64),
        "sampled": column(each.sampled for each in entries),
        "advantage": column(each.advantage for each in entries),
        "weight": column(each.weight for each in entries),
        "age": column((version - each.version for each in entries), torch.int64),
        "imitated": torch.tensor([row.imitated for row in rows]),
        **{name: column(values) for name, values in more.items()},
    }
    scaled = any(row.temperature != 1 for row in rows)
    if scaled:
        columns["temperature"] = torch.tensor([row.temperature for row in rows])
    batch = tensordict_utils.get_tensordict(columns)
    of_longest = -(-max(len(row.tokens) for row in rows) // sharing)
    told = {"compute_loss": learn, "calculate_entropy": learn, "max_token_len_per_gpu": max(most_tokens, of_longest)}
    tensordict_utils.assign_non_tensor(batch, **told, **({} if scaled else {"temperature": 1.0}))
    return batch


def of_entries(values: torch.Tensor, rows: Sequence[SampleRow]) -> list[np.ndarray]:
    """Values that verl gives for each token of a batch, nested like the rows (the entry of a token stands at the one
    before it), as one array per row of its entries alone."""
    return [part.float().numpy()[row.entries.place - 1] for part, row in zip(values.unbind(), rows, strict=True)]


def of_samples(values: Sequence[np.ndarray], rows: Sequence[SampleRow], samples: int) -> list[list[float]]:
    """Values of each row's entries as those of each sample's, in the order of its tokens."""
    found: list[list[tuple[int, float]]] = [[] for _ in range(samples)]
    for part, row in zip(values, rows, strict=True):
        if row.sample is not None:
            found[row.sample] += zip(row.numbers.tolist(), part.tolist(), strict=True)
    return [[value for _, value in sorted(pairs)] for pairs in found]


def of_rows(values: Sequence[Sequence[float] | torch.Tensor], rows: Sequence[SampleRow]) -> list[np.ndarray]:
    """Values of each sample's trained tokens as those of each row's entries."""
    return [NOTHING if row.sample is None else np.asarray(values[row.sample])[row.numbers] for row in rows]
