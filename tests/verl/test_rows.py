"""Samples become rows, and rows are shared out over ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from astune.backbone.losses.entries import TrainedTokens
from astune.backbone.verl.trainer.learner import needs_whole_rows
from astune.backbone.verl.trainer.rows import FILLER, SampleRow, batch_of, of_rows, of_samples, rows_of, share_out
from astune.config.schema import AlgorithmConfig
from astune.errors import TrainingError
from astune.types import Sample, Span, Timeline
from tests.backbone.local.test_prefix_tree import branching_samples

BRANCHES = branching_samples()
"""Thirteen rows of two spans; those of the first group at temperature 0.5."""


def of_two_temperatures() -> Sample:
    first, second = (Span(n, 2 + 3 * n, 4 + 3 * n, 0, heat, True, [-1.0, -2.0]) for n, heat in enumerate((1.0, 0.5)))
    return Sample(Timeline("a", [5, 6, 7, 8, 9, 1, 2, 3], (first, second)), (1.0, 2.0), (0.25, 0.25), "t", "e")


def test_a_row_ends_with_its_last_trained_token() -> None:
    sample = replace(of_two_temperatures(), weights=(0.5, 0.0))
    (row,) = rows_of([sample], whole=True)
    assert row.tokens.tolist() == [5, 6, 7, 8] and row.entries.place.tolist() == [2, 3]


def test_a_sample_of_two_temperatures_is_a_row_for_each_that_trains_its_own_tokens() -> None:
    cold, warm = rows_of([of_two_temperatures()], whole=False)
    assert (cold.temperature, cold.entries.place.tolist()) == (0.5, [5, 6])
    assert (warm.temperature, warm.entries.place.tolist()) == (1.0, [2, 3])
    values = [row.entries.place * 10.0 for row in (cold, warm)]
    whole = [[20.0, 30.0, 50.0, 60.0]]
    assert of_samples(values, [cold, warm], 1) == whole
    for back, own in zip(of_rows(whole, [cold, FILLER, warm]), (values[0], [], values[1]), strict=True):
        assert back.tolist() == list(own)


def test_a_loss_over_whole_rows_refuses_two_temperatures_in_one() -> None:
    with pytest.raises(TrainingError, match=r"episode e has tokens of several temperatures \(\[0.5, 1.0\]\)"):
        rows_of([of_two_temperatures()], whole=True)


@pytest.mark.parametrize(
    ("values", "whole"),
    [
        ({"loss": "gspo"}, True),
        ({"kl_beta": 0.1, "kl_in": "reward"}, True),
        ({"kl_beta": 0.1}, False),
        ({}, False),
        ({"method": "rft"}, False),
    ],
    ids=str,
)
def test_only_losses_over_whole_rows_need_them(values: dict[str, Any], whole: bool) -> None:
    assert needs_whole_rows(AlgorithmConfig.model_validate(values)) is whole


def test_the_columns_of_a_batch_stand_at_the_trained_tokens() -> None:
    rows = share_out(rows_of([of_two_temperatures()], whole=False), 3)
    batch = batch_of(rows, 100, version=4)
    assert [part.tolist() for part in batch["loss_mask"].unbind()] == [[0] * 5 + [1, 1], [0, 0, 1, 1, 0, 0, 0], [0, 0]]
    assert batch["advantage"].unbind()[0].tolist() == [0.0] * 5 + [2.0, 2.0]
    assert batch["age"].unbind()[1].tolist() == [0, 0, 4, 4, 0, 0, 0]
    assert torch.equal(batch["temperature"], torch.tensor([0.5, 1.0, 1.0]))


def test_a_row_longer_than_a_micro_batch_is_one_by_itself() -> None:
    rows = rows_of(BRANCHES, whole=True)
    longest = max(len(row.tokens) for row in rows)
    assert batch_of(rows, 10)["max_token_len_per_gpu"] == longest
    assert batch_of(rows, longest + 1)["max_token_len_per_gpu"] == longest + 1
    assert batch_of(rows, 10, sharing=2)["max_token_len_per_gpu"] == max(10, -(-longest // 2))


LENGTHS = st.lists(st.integers(2, 400), min_size=1, max_size=40)


def row_of(number: int, length: int) -> SampleRow:
    one = np.ones(1)
    entries = TrainedTokens(np.array([1]), np.array([0]), one, one, one, one, one)
    return SampleRow(number, np.zeros(length, np.int32), entries, np.array([0]), 1.0, False)


@given(LENGTHS, st.integers(1, 8))
def test_every_rank_gets_equally_many_rows_and_each_row_goes_to_one(lengths: list[int], ranks: int) -> None:
    rows = [row_of(number, length) for number, length in enumerate(lengths)]
    shared = share_out(rows, ranks)
    assert len(shared) % ranks == 0 and len(shared) - len(rows) < ranks
    assert sorted(row.sample for row in shared if row.sample is not None) == list(range(len(rows)))
    assert all(not len(row.entries.place) for row in shared if row.sample is None)


@given(LENGTHS, st.integers(2, 4))
def test_no_rank_has_more_tokens_than_another_by_more_than_the_longest_row_and_a_half(
    lengths: list[int], ranks: int
) -> None:
    rows = [row_of(number, length) for number, length in enumerate(lengths * ranks)]
    shared = share_out(rows, ranks)
    each = len(shared) // ranks
    tokens = [sum(len(row.tokens) for row in shared[rank * each : (rank + 1) * each]) for rank in range(ranks)]
    assert max(tokens) - min(tokens) <= 1.5 * max(lengths)
