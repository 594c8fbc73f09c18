"""What holds the policy near the reference, against sums over a whole small vocabulary in double precision."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from astune.backbone.losses.entries import Entries, to_go
from astune.backbone.losses.objective import KL
from astune.backbone.losses.policy import reinforce
from astune.config.algorithm import AlgorithmConfig
from tests.backbone.losses.bandit import VOCABULARY, reward_after

LOGITS = st.lists(st.floats(-3, 3), min_size=5, max_size=5)


def distribution(logits: list[float]) -> np.ndarray:
    weights = np.exp(np.array(logits, dtype=np.float64))
    return np.asarray(weights / weights.sum())


def kl(p: np.ndarray, q: np.ndarray) -> float:
    return float((p * (np.log(p) - np.log(q))).sum())


def slope(p_logits: list[float], value: object) -> np.ndarray:
    """Finite differences of a function of logits."""
    assert callable(value)
    at, step, found = np.array(p_logits, dtype=np.float64), 1e-5, []
    for place in range(len(at)):
        change = np.zeros_like(at)
        change[place] = step
        found.append((value(at + change) - value(at - change)) / (2 * step))
    return np.array(found)


def mean_gradient(p_logits: list[float], q: np.ndarray, name: str) -> np.ndarray:
    """What the gradient of the estimator over all tokens is on average, sampled from p itself."""
    logits = torch.tensor(p_logits, dtype=torch.float64, requires_grad=True)
    logprob = torch.log_softmax(logits, 0)
    each = KL[name](logprob - torch.tensor(np.log(q)))
    (logprob.exp().detach() * each).sum().backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    return logits.grad.numpy()


@given(LOGITS, LOGITS)
def test_k1_and_k3_have_the_divergence_as_their_mean(p_logits: list[float], q_logits: list[float]) -> None:
    p, q = distribution(p_logits), distribution(q_logits)
    difference = torch.tensor(np.log(p) - np.log(q))
    for name in ("k1", "k3"):
        assert float((torch.tensor(p) * KL[name](difference)).sum()) == pytest.approx(kl(p, q), abs=1e-12)
    assert float(KL["k3"](difference).min()) >= -1e-12
    assert np.allclose(KL["k2"](difference).numpy(), (np.log(p) - np.log(q)) ** 2 / 2)


@given(LOGITS, LOGITS)
def test_what_the_gradients_pull_at(p_logits: list[float], q_logits: list[float]) -> None:
    """That of k1 is 0 on average; k2's is that of KL(p | q), k3's that of KL(q | p)."""
    q = distribution(q_logits)
    assert np.allclose(mean_gradient(p_logits, q, "k1"), 0, atol=1e-12)
    forward = slope(p_logits, lambda logits: kl(distribution(list(logits)), q))
    assert np.allclose(mean_gradient(p_logits, q, "k2"), forward, atol=1e-7)
    backward = slope(p_logits, lambda logits: kl(q, distribution(list(logits))))
    assert np.allclose(mean_gradient(p_logits, q, "k3"), backward, atol=1e-7)


@given(LOGITS, LOGITS, LOGITS)
def test_k1_in_the_reward_pulls_at_the_divergence_of_whole_answers(
    first: list[float], second: list[float], q_logits: list[float]
) -> None:
    """Answers of two tokens from `first` and `second`. The gradient of a policy that gets what diverges from a token on
    taken off is, on average over all answers, that of the divergence between answers."""
    q = distribution(q_logits)
    logits = torch.tensor([first, second], dtype=torch.float64, requires_grad=True)
    logprobs = torch.log_softmax(logits, -1)
    answers = torch.cartesian_prod(torch.arange(5), torch.arange(5))
    logprob = torch.stack([logprobs[0, answers[:, 0]], logprobs[1, answers[:, 1]]], -1)
    divergence = logprob - torch.tensor(np.log(q))[answers]
    row = torch.arange(25).repeat_interleave(2)
    advantage = -to_go(KL["k1"](divergence.flatten()), row).reshape(25, 2)
    loss = (-logprob * advantage).sum(-1) * logprob.sum(-1).exp().detach()
    loss.sum().backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    for place, own in enumerate((first, second)):
        exact = slope(own, lambda values: kl(distribution(list(values)), q))
        assert np.allclose(logits.grad[place].numpy(), exact, atol=1e-7)


@pytest.mark.parametrize("term", ["k2", "k3", "entropy"])
def test_what_holds_the_policy_back_keeps_a_bandit_near_where_it_began(term: str) -> None:
    """Where it began every token is as likely as any other, so entropy does the same as the divergence from there."""

    def objective(entries: Entries, every: torch.Tensor) -> torch.Tensor:
        divergence = entries.logprob + np.log(VOCABULARY)
        held = (every.exp() * every).sum(-1) if term == "entropy" else KL[term](divergence)
        return reinforce(entries, AlgorithmConfig()).loss + strength * held

    strength = 0.0
    assert reward_after(40, objective) > 0.9
    strength = 1.0
    assert 0.1 < reward_after(40, objective) < 0.5
