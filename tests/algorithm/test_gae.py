"""GAE against its definition as a sum, and rewards against advantages."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astune.algorithm import Weighting, check_step, load_estimator, to_samples
from astune.algorithm.credit import Credit
from astune.backbone.losses.critic import gae, token_rewards
from astune.config.schema import AlgorithmConfig
from astune.types import Group
from tests.algorithm.test_credit import CREDITS, groups

NUMBERS = st.floats(-5, 5)
ROWS = st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=12)
PART = st.floats(0, 1)


@given(ROWS, PART, PART)
def test_gae_is_the_sum_of_later_errors_of_the_critic(row: list[tuple[float, float]], gamma: float, lam: float) -> None:
    rewards, values = np.array(row, np.float64).T
    errors = rewards + gamma * np.append(values[1:], 0.0) - values
    expected = [sum((gamma * lam) ** k * errors[t + k] for k in range(len(errors) - t)) for t in range(len(errors))]
    assert gae(rewards.tolist(), values.tolist(), gamma, lam) == pytest.approx(expected, abs=1e-9)


@given(ROWS, PART)
def test_with_lambda_1_the_returns_do_not_depend_on_the_critic(row: list[tuple[float, float]], gamma: float) -> None:
    rewards, values = [r for r, _ in row], [v for _, v in row]
    expected = [sum(gamma**k * r for k, r in enumerate(rewards[t:])) for t in range(len(row))]
    found = gae(rewards, values, gamma, 1.0)
    assert [a + v for a, v in zip(found, values, strict=True)] == pytest.approx(expected, abs=1e-8)


@given(st.lists(groups(), max_size=3), st.sampled_from(CREDITS))
def test_without_a_critic_every_token_gets_what_is_earned_from_its_turn_on(step: list[Group], credit: Credit) -> None:
    """gamma and lambda 1, all values 0: then GAE is what the rewards in place of advantages add up to on each branch,
    with agents' and turns' rewards, rewritten histories and turns that are not trained."""
    estimator = load_estimator(AlgorithmConfig(advantage="gae"))
    samples, receipt = to_samples(step, estimator, Weighting("episode_mean", credit))
    check_step(step, samples, receipt)
    assert "no_signal" not in receipt.dropped and receipt.groups_used == sum(
        any(episode.verdict is not None for episode in group.episodes) for group in step
    )
    for sample in samples:
        paid = token_rewards(sample)
        assert len(paid) == sample.trained_tokens
        found = iter(gae(paid, [0.0] * len(paid), 1.0, 1.0))
        for span, weight, advantage in zip(sample.timeline.spans, sample.weights, sample.advantages, strict=True):
            if weight:
                assert [next(found) for _ in range(len(span))] == pytest.approx([advantage] * len(span))
