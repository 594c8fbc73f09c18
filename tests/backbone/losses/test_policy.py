"""Every policy loss, its gradient and its figures against formulas in numpy; and as steps on a bandit of tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from astune.backbone.losses.entries import Entries, row_mean, to_go
from astune.backbone.losses.policy import LOSSES
from astune.config.algorithm import AlgorithmConfig, PolicyLossName
from astune.config.rules.algorithm import algorithm_contradictions
from tests.backbone.losses.bandit import reward_after
from tests.backbone.losses.numpy_losses import Case, losses, slopes
from tests.rows import each_row

CONFIGS: list[dict[str, Any]] = [
    {"loss": "ppo_clip"},
    {"loss": "ppo_clip", "clip_low": 0.1, "clip_high": 0.5},
    {"loss": "ppo_clip", "clip_dual": 1.5},
    {"loss": "gspo", "clip_low": 0.05, "clip_high": 0.1},
    {"loss": "cispo", "clip_high": 0.5},
    {"loss": "minirl"},
    {"loss": "minirl", "strict_in_bound": True},
    {"loss": "minirl", "out_of_date_decay": 0.5, "importance_weight_cap_ratio": 2.0, "clip_low": 0.4},
    {"loss": "opmd", "opmd_tau": 0.5},
    {"loss": "opmd", "importance": "mask", "importance_cap": 1.2},
    {"loss": "reinforce"},
    {"loss": "reinforce", "importance": "truncate", "importance_cap": 1.2},
    {"loss": "reinforce", "importance": "mask", "importance_cap": 1.2},
]


def configured(values: dict[str, Any]) -> AlgorithmConfig:
    config = AlgorithmConfig(**values)
    assert not list(algorithm_contradictions(config))
    return config


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """One to four rows of one to five tokens: ratios about e**-1 to e, ages 0 to 3, advantages of both signs and 0."""
    lengths = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    size = sum(lengths)

    def numbers(low: float, high: float) -> np.ndarray:
        return np.array(draw(st.lists(st.floats(low, high), min_size=size, max_size=size)))

    logprob = numbers(-4, -0.01)
    row = np.repeat(np.arange(len(lengths)), lengths)
    age = np.array(draw(st.lists(st.integers(0, 3), min_size=size, max_size=size)))
    return Case(logprob, logprob - numbers(-1, 1), numbers(-2, 2), row, age)


def entries_of(case: Case) -> Entries:
    logprob = torch.tensor(case.logprob, requires_grad=True)
    return Entries(logprob, *(torch.tensor(part) for part in (case.sampled, case.advantage, case.row, case.age)))


def no_kink_near(case: Case, config: AlgorithmConfig) -> bool:
    """Finite differences know nothing of a corner closer than their step."""
    ratio = np.exp(case.logprob - case.sampled)
    of_row = np.exp([np.mean((case.logprob - case.sampled)[case.row == row]) for row in case.row])
    corners = [1 - config.clip_low, 1 + config.clip_high, config.clip_dual or 0.0]
    return all(np.abs(found - corner).min() > 1e-4 for found in (ratio, of_row) for corner in corners)


def test_the_names_of_the_configuration_are_those_of_the_losses() -> None:
    assert set(get_args(PolicyLossName)) == set(LOSSES)
    assert {values["loss"] for values in CONFIGS} == set(LOSSES)


@each_row("values", CONFIGS, ids=str)
@settings(max_examples=30)
@given(case=cases())
def test_a_loss_and_its_gradient_are_those_of_its_formula(values: dict[str, Any], case: Case) -> None:
    config = configured(values)
    assume(no_kink_near(case, config))
    entries = entries_of(case)
    found = LOSSES[config.loss](entries, config)
    assert np.allclose(found.loss.detach().numpy(), losses(case, case.logprob, config), atol=1e-12)
    found.loss.sum().backward()  # type: ignore[no-untyped-call]
    assert entries.logprob.grad is not None
    assert np.allclose(entries.logprob.grad.numpy(), slopes(case, config), atol=1e-6)
    assert all(share.shape == entries.logprob.shape and not share.requires_grad for share in found.shares.values())


@settings(max_examples=50)
@given(cases(), st.floats(-2, 2))
def test_gspo_with_one_advantage_for_a_row_has_the_gradient_of_the_rows_own_ratio(case: Case, advantage: float) -> None:
    """The mean over a row's tokens is the clipped surrogate of the whole row: GSPO's first form, of which the token
    form is a way of writing. A sign fault here would train every answer the wrong way."""
    config = configured({"loss": "gspo", "clip_low": 0.05, "clip_high": 0.1})
    case = replace(case, advantage=np.full_like(case.advantage, advantage))
    assume(no_kink_near(case, config))
    entries = entries_of(case)
    length = np.array([np.sum(case.row == row) for row in case.row])
    loss = LOSSES["gspo"](entries, config).loss / torch.tensor(length)
    loss.sum().backward()  # type: ignore[no-untyped-call]

    def whole(logprob: np.ndarray) -> float:
        total = 0.0
        for row in np.unique(case.row):
            ratio = np.exp(np.mean((logprob - case.sampled)[case.row == row]))
            total -= min(ratio * advantage, np.clip(ratio, 0.95, 1.1) * advantage)
        return total

    unit = np.eye(len(case.logprob)) * 1e-6
    expected = [(whole(case.logprob + step) - whole(case.logprob - step)) / 2e-6 for step in unit]
    assert float(loss.detach().sum()) == pytest.approx(whole(case.logprob), abs=1e-9)
    assert entries.logprob.grad is not None
    assert np.allclose(entries.logprob.grad.numpy(), expected, atol=1e-6)


@settings(max_examples=20)
@given(cases())
def test_on_the_policy_that_sampled_every_loss_has_the_gradient_of_reinforce(case: Case) -> None:
    case = replace(case, sampled=case.logprob)
    for values in CONFIGS:
        config = configured(values)
        entries = entries_of(case)
        LOSSES[config.loss](entries, config).loss.sum().backward()  # type: ignore[no-untyped-call]
        assert entries.logprob.grad is not None
        scale = 1 + config.opmd_tau if config.loss == "opmd" else 1
        assert np.allclose(entries.logprob.grad.numpy() * scale, -case.advantage)


@each_row(
    ("values", "figure", "expected"),
    [
        ({"loss": "ppo_clip"}, "clip_fraction", [1, 0, 0, 1]),
        ({"loss": "ppo_clip", "clip_dual": 1.5}, "dual_clip_fraction", [0, 0, 0, 1]),
        ({"loss": "gspo"}, "clip_fraction", [0, 0, 1, 1]),
        ({"loss": "cispo"}, "clip_fraction", [0, 0, 0, 1]),
        ({"loss": "minirl", "strict_in_bound": True}, "dropped_fraction", [1, 0, 0, 0]),
        ({"loss": "reinforce", "importance": "truncate"}, "truncated_fraction", [0, 0, 0, 1]),
        ({"loss": "opmd", "importance": "mask"}, "dropped_fraction", [0, 0, 0, 1]),
    ],
)
def test_the_figures_count_the_entries_that_are_treated_otherwise(
    values: dict[str, Any], figure: str, expected: list[int]
) -> None:
    """Ratios 0.6, 1.25, 1 and 3, the first two of one row and the last two of another; A < 0 first and last."""
    sampled = -torch.log(torch.tensor([0.6, 1.25, 1.0, 3.0]))
    zero = torch.zeros(4)
    entries = Entries(zero, sampled, torch.tensor([-1.0, 1.0, 1.0, -1.0]), torch.tensor([0, 0, 1, 1]), zero)
    config = configured(values)
    assert LOSSES[config.loss](entries, config).shares[figure].int().tolist() == expected


@each_row("values", CONFIGS, ids=str)
@each_row("recorded", [-9999.0, -1e30, -float("inf"), 0.0, 50.0])
def test_a_recorded_logprob_far_from_the_own_one_spoils_no_loss(values: dict[str, Any], recorded: float) -> None:
    config = configured(values)
    for advantage in (1.0, -1.0):
        logprob = torch.tensor([-1.0, -2.0, -3.0], requires_grad=True)
        sampled = torch.tensor([recorded, -2.0, -3.0])
        entries = Entries(logprob, sampled, torch.full((3,), advantage), torch.tensor([0, 0, 1]), torch.zeros(3))
        loss = LOSSES[config.loss](entries, config).loss
        loss.sum().backward()  # type: ignore[no-untyped-call]
        assert loss.isfinite().all() and logprob.grad is not None and logprob.grad.isfinite().all()


@given(st.lists(st.lists(st.floats(-100, 100), min_size=1, max_size=6), min_size=1, max_size=6))
def test_means_and_sums_keep_within_their_row(rows: list[list[float]]) -> None:
    values = torch.tensor([value for row in rows for value in row])
    number = torch.tensor([place for place, row in enumerate(rows) for _ in row])
    left = [sum(row[place:]) for row in rows for place in range(len(row))]
    assert np.allclose(to_go(values, number).numpy(), left, atol=1e-3)
    mean = [sum(row) / len(row) for row in rows for _ in row]
    assert np.allclose(row_mean(values, number).numpy(), mean, atol=1e-3)


@each_row("values", CONFIGS, ids=str)
def test_a_bandit_of_tokens_is_solved(values: dict[str, Any]) -> None:
    config = configured(values)
    assert reward_after(60, lambda entries, _: LOSSES[config.loss](entries, config).loss) > 0.9


def test_what_pulls_the_wrong_way_does_not_solve_the_bandit() -> None:
    assert reward_after(60, lambda entries, _: -LOSSES["reinforce"](entries, AlgorithmConfig()).loss) < 0.1
