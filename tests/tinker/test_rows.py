"""Rows that share prefixes, computed together, against each row alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

from astune.backbone.local.model.model import LoadedModel, read_weights  # noqa: E402
from astune.support.resources import tiny_model_dir  # noqa: E402
from astune.tinker_server.requests import RequestError  # noqa: E402
from astune.tinker_server.rows import TargetRow  # noqa: E402
from astune.tinker_server.training import AdamStep, TrainedModel  # noqa: E402
from astune.tinker_server.versions import EMPTY_LOGPROB, score_prompt  # noqa: E402

ADAM = AdamStep(1e-3, 0.9, 0.95, 1e-8, 0.0, 0.0)


def trained(temperature: float = 1.0) -> TrainedModel:
    model = read_weights(tiny_model_dir()).eval()
    cpu = torch.device("cpu")
    return TrainedModel(LoadedModel(model, model, tiny_model_dir(), cpu, torch.float32, 2048, False), temperature)


@pytest.fixture(scope="module")
def plain() -> Any:
    return AutoModelForCausalLM.from_pretrained(tiny_model_dir(), dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def ours() -> TrainedModel:
    return trained()


def test_the_end_of_a_prompt_is_scored_alone_as_within_all_of_it() -> None:
    model = read_weights(tiny_model_dir()).eval()
    prompt = [7, 300, 42, 42, 9]
    whole, end = (score_prompt(model, prompt, 1.0, 2, last) for last in (None, 2))
    np.testing.assert_array_equal(end.logprobs[-2:], whole.logprobs[-2:])
    np.testing.assert_array_equal(end.top_ids[-2:], whole.top_ids[-2:])
    assert np.isnan(end.logprobs[:-2]).all() and (end.top_logprobs[:-2] == EMPTY_LOGPROB).all()


def row_of(tokens: list[int], targets: list[int], weights: list[float]) -> TargetRow:
    return TargetRow(np.array(tokens), np.array(targets), np.array(weights, np.float32))


def expected_logprobs(plain: Any, row: TargetRow, temperature: float = 1.0) -> Any:
    logits = plain(torch.as_tensor(row.tokens)[None]).logits[0] / temperature
    return torch.log_softmax(logits, -1)[torch.arange(len(row.tokens)), torch.as_tensor(row.targets)]


@st.composite
def rows(draw: st.DrawFn) -> list[TargetRow]:
    """Short rows over three tokens, so that many share prefixes and some are equal or continue each other."""
    made = []
    for _ in range(draw(st.integers(1, 6))):
        tokens = draw(st.lists(st.integers(5, 7), min_size=1, max_size=8))
        targets = draw(st.lists(st.integers(0, 1023), min_size=len(tokens), max_size=len(tokens)))
        weights = draw(st.lists(st.floats(-2, 2, width=32), min_size=len(tokens), max_size=len(tokens)))
        made.append(row_of(tokens, targets, weights))
    return made


@settings(max_examples=25)
@given(rows(), st.integers(1, 20))
def test_each_row_gets_what_it_gets_alone(plain: Any, ours: TrainedModel, batch: list[TargetRow], most: int) -> None:
    ours._limit = most
    found, loss = ours.forward(batch, backward=False)
    total = 0.0
    with torch.no_grad():
        for row, logprobs in zip(batch, found, strict=True):
            expected = expected_logprobs(plain, row)
            assert logprobs == pytest.approx(expected.numpy(), abs=1e-4)
            total -= float((expected * torch.as_tensor(row.weights)).sum())
    assert loss == pytest.approx(total, abs=1e-3, rel=1e-4)


def test_a_training_temperature_divides_the_logits(plain: Any) -> None:
    row = row_of([5, 6, 7], [1, 2, 3], [1.0, 1.0, 1.0])
    (found,), _ = trained(0.5).forward([row], backward=False)
    with torch.no_grad():
        assert found == pytest.approx(expected_logprobs(plain, row, 0.5).numpy(), abs=1e-4)


def test_a_gradient_that_is_not_finite_is_skipped_and_told() -> None:
    model = trained()
    row = row_of([5, 6, 7], [1, 2, 3], [1.0, 1.0, 1.0])
    before, _ = model.forward([row], backward=False)
    model.forward([row_of([5], [6], [float("inf")])], backward=True)
    assert model.step(ADAM)["skipped"] == 1.0
    after, _ = model.forward([row], backward=False)
    assert np.array_equal(before[0], after[0])


def test_a_backward_pass_that_fails_leaves_no_gradient_of_its_first_part() -> None:
    model = trained()
    model._limit = 1
    rows = [row_of([5, 6], [1, 2], [1.0, 1.0]), row_of([9999], [1], [1.0])]
    with pytest.raises(IndexError):
        model.forward(rows, backward=True)
    with pytest.raises(RequestError, match="there is no gradient"):
        model.step(ADAM)
