"""Weights of tokens of an older policy where that one was cut by top-p or top-k: sums over a whole small vocabulary, in
double precision, against what docs/algorithms.md says of them.

mu sampled, and only from its likeliest tokens S; pi is trained. Both sides record log-probabilities before any cut.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from astune.backbone.losses.entries import Entries
from astune.backbone.losses.policy import LOSSES
from astune.config.algorithm import AlgorithmConfig

SIZE = 6
LOGITS = st.lists(st.floats(-3, 3), min_size=SIZE, max_size=SIZE)


@dataclass(frozen=True)
class Setting:
    pi: np.ndarray
    mu: np.ndarray
    inside: np.ndarray
    """Whether a token is in S."""
    reward: np.ndarray


@st.composite
def settings_of(draw: st.DrawFn) -> Setting:
    pi, mu = (np.exp(np.array(draw(LOGITS))) for _ in range(2))
    pi, mu = pi / pi.sum(), mu / mu.sum()
    kept = draw(st.integers(1, SIZE))
    inside = np.isin(np.arange(SIZE), np.argsort(-mu, kind="stable")[:kept])
    return Setting(pi, mu, inside, np.array(draw(st.lists(st.floats(-1, 1), min_size=SIZE, max_size=SIZE))))


def mean_gradient(setting: Setting, baseline: float, config: AlgorithmConfig) -> np.ndarray:
    """The gradient (with respect to pi's logits) of what the loss of every token in S gains, each as often as it was
    sampled."""
    logits = torch.tensor(np.log(setting.pi), requires_grad=True)
    logprob = torch.log_softmax(logits, 0)
    token = torch.tensor(np.flatnonzero(setting.inside))
    advantage = torch.tensor(setting.reward - baseline)[token]
    sampled = torch.tensor(np.log(setting.mu))[token]
    loss = LOSSES[config.loss](Entries(logprob[token], sampled, advantage, token, token), config).loss
    often = setting.mu * setting.inside / setting.mu[setting.inside].sum()
    (-loss * torch.tensor(often)[token]).sum().backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    return logits.grad.numpy()


def grad_of_mass(setting: Setting) -> np.ndarray:
    """The gradient of log pi(S)."""
    return np.asarray(setting.pi * setting.inside / setting.pi[setting.inside].sum() - setting.pi)


def grad_within(setting: Setting) -> tuple[float, np.ndarray]:
    """The mean reward of pi drawn from S alone, and its gradient."""
    alone = setting.pi * setting.inside / setting.pi[setting.inside].sum()
    mean = float(alone @ setting.reward)
    return mean, alone * (setting.reward - mean)


FREE = AlgorithmConfig(loss="reinforce", importance="truncate", importance_cap=1e8)


@given(settings_of(), st.floats(-1, 1))
def test_weights_before_the_cut_learn_for_the_policy_drawn_from_the_same_tokens(setting: Setting, b: float) -> None:
    """The mean gradient is pi(S) / mu(S) times (the gradient of the reward of pi drawn from S, plus the gradient of
    log pi(S) times what that reward is above the baseline)."""
    factor = setting.pi[setting.inside].sum() / setting.mu[setting.inside].sum()
    reward, gradient = grad_within(setting)
    expected = factor * (gradient + (reward - b) * grad_of_mass(setting))
    assert np.allclose(mean_gradient(setting, b, FREE), expected, atol=1e-9)


@given(settings_of())
def test_with_the_mean_reward_as_baseline_the_cut_costs_a_factor_and_no_direction(setting: Setting) -> None:
    reward, gradient = grad_within(setting)
    factor = setting.pi[setting.inside].sum() / setting.mu[setting.inside].sum()
    assert np.allclose(mean_gradient(setting, reward, FREE), factor * gradient, atol=1e-9)


@given(settings_of(), st.floats(1.0, 3.0))
def test_a_token_is_never_weighed_by_more_than_the_cap(setting: Setting, cap: float) -> None:
    """Nor by nothing because the policy of today would have cut it: its probability before the cut is never 0."""
    logprob = torch.tensor(np.log(setting.pi), requires_grad=True)
    sampled, one = torch.tensor(np.log(setting.mu)), torch.ones(SIZE, dtype=torch.float64)
    for importance in ("truncate", "mask"):
        config = AlgorithmConfig.model_validate({"loss": "opmd", "opmd_tau": 0.0, "importance": importance})
        config = config.model_copy(update={"importance_cap": cap})
        logprob.grad = None
        row = torch.arange(SIZE)
        LOSSES["opmd"](Entries(logprob, sampled, one, row, row), config).loss.sum().backward()  # type: ignore[no-untyped-call]
        assert logprob.grad is not None
        weights = -logprob.grad.numpy()
        ratio = setting.pi / setting.mu
        beyond = np.minimum(ratio, cap) if importance == "truncate" else np.where(ratio > cap, 0.0, ratio)
        assert weights == pytest.approx(beyond) and weights.max() <= cap + 1e-12
