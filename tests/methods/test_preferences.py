"""Losses over preferences against torch in double precision, with their derivatives by autograd."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astune.config.schema import AlgorithmConfig
from astune.methods.dpo import pair_loss
from astune.methods.kto import answer_loss, reference_point
from astune.methods.preferences import ScoredAnswer

torch = pytest.importorskip("torch")
SUMS = st.floats(-40.0, 0.0)
ANSWERS = st.builds(ScoredAnswer, SUMS, SUMS, st.integers(1, 9))
BETAS = st.floats(0.05, 2.0)


def expected(kind: str, beta: float, margin: float, chosen: ScoredAnswer, rejected: ScoredAnswer, own: Any) -> Any:
    """The papers' formulas, with `own` (2,) in the place of the answers' log-probabilities."""
    (c, r), logsigmoid = own, torch.nn.functional.logsigmoid
    gain_c, gain_r = c - chosen.reference, r - rejected.reference
    if kind == "sigmoid":
        return -logsigmoid(beta * gain_c - beta * gain_r)
    if kind == "ipo":
        return (gain_c - gain_r - 1 / (2 * beta)) ** 2
    if kind == "length_normalised":
        return -logsigmoid(beta / chosen.tokens * gain_c - beta / rejected.tokens * gain_r)
    return -logsigmoid(beta / chosen.tokens * c - beta / rejected.tokens * r - margin)


@pytest.mark.parametrize("kind", ["sigmoid", "ipo", "length_normalised", "simpo"])
@given(chosen=ANSWERS, rejected=ANSWERS, beta=BETAS, margin=st.floats(0.0, 2.0))
def test_the_loss_of_a_pair_and_its_slopes_are_those_of_the_paper(
    kind: Any, chosen: ScoredAnswer, rejected: ScoredAnswer, beta: float, margin: float
) -> None:
    found = pair_loss(chosen, rejected, AlgorithmConfig(preference_loss=kind, dpo_beta=beta, preference_margin=margin))
    own = torch.tensor([chosen.logprob, rejected.logprob], dtype=torch.float64, requires_grad=True)
    loss = expected(kind, beta, margin, chosen, rejected, own)
    loss.backward()
    assert found.loss == pytest.approx(loss.item(), rel=1e-9, abs=1e-12)
    assert found.slopes == pytest.approx(own.grad.tolist(), rel=1e-9, abs=1e-12)


@given(answer=ANSWERS, good=st.booleans(), beta=BETAS, crossed=st.lists(ANSWERS, min_size=1, max_size=4))
def test_the_loss_of_a_good_or_bad_answer_and_its_slope_are_those_of_the_paper(
    answer: ScoredAnswer, good: bool, beta: float, crossed: list[ScoredAnswer]
) -> None:
    point = reference_point(crossed)
    config = AlgorithmConfig(method="kto", dpo_beta=beta, kto_good_weight=0.7, kto_bad_weight=1.5)
    found = answer_loss(answer, good, point, config)
    own = torch.tensor(answer.logprob, dtype=torch.float64, requires_grad=True)
    z = max(0.0, sum(each.logprob - each.reference for each in crossed) / len(crossed))
    reward = own - answer.reference
    value = 0.7 * torch.sigmoid(beta * (reward - z)) if good else 1.5 * torch.sigmoid(beta * (z - reward))
    loss = (0.7 if good else 1.5) - value
    loss.backward()
    assert point == pytest.approx(z) and found.loss == pytest.approx(loss.item(), rel=1e-9, abs=1e-12)
    assert found.slope == pytest.approx(own.grad.item(), rel=1e-6, abs=1e-12)


def test_losses_of_answers_that_are_far_apart_are_numbers() -> None:
    far = ScoredAnswer(-1e6, 0.0, 3)
    near = replace(far, logprob=0.0)
    assert pair_loss(far, near, AlgorithmConfig()).slopes == (-0.1, 0.1)
    assert pair_loss(near, far, AlgorithmConfig()).loss == 0.0
    assert answer_loss(far, True, 0.0, AlgorithmConfig(method="kto")).slope == 0.0
