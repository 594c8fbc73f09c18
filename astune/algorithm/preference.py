"""Losses over preferences, and their derivatives, on numbers: sums of log-probabilities over whole answers.

Of an answer there is log p, its log-probability under the weights that are trained, and log p_ref under those that the
run, or its stage, began with; gain = log p - log p_ref. c is the preferred answer of a pair, r the rejected one.

    preference_loss     loss of a pair                                                from
    sigmoid             -log sigmoid(beta (gain_c - gain_r))                          DPO, arXiv 2305.18290
    ipo                 (gain_c - gain_r - 1 / (2 beta))^2                            IPO, arXiv 2310.12036
    length_normalised   -log sigmoid(beta (gain_c / |c| - gain_r / |r|))              Tulu 3, arXiv 2411.15124
    simpo               -log sigmoid(beta (log p_c / |c| - log p_r / |r|) - margin)   SimPO, arXiv 2405.14734

The first two are over sums, as in the papers. Good and bad answers one by one, with z the larger of 0 and the mean gain
of answers after prompts of others (KTO, arXiv 2402.01306, less its constant):

    good   -w_good sigmoid(beta (gain - z)) + w_good      bad   -w_bad sigmoid(beta (z - gain)) + w_bad

The loss of an update is the mean over its pairs, or its answers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from astune.config.algorithm import AlgorithmConfig


@dataclass(frozen=True)
class ScoredAnswer:
    """What models say of an answer: log-probabilities summed over its tokens, of which there are `tokens`."""

    logprob: float
    reference: float
    tokens: int

    @property
    def gain(self) -> float:
        return self.logprob - self.reference


@dataclass(frozen=True)
class PairLoss:
    """`slopes` are the derivatives by log p of the preferred and of the rejected answer, `rewards` what each is worth,
    beta included: the loss wants the first to be greater."""

    loss: float
    slopes: tuple[float, float]
    rewards: tuple[float, float]


def pair_loss(chosen: ScoredAnswer, rejected: ScoredAnswer, config: AlgorithmConfig) -> PairLoss:
    """The loss of one pair.

    >>> found = pair_loss(ScoredAnswer(-1.0, -1.0, 2), ScoredAnswer(-3.0, -3.0, 2), AlgorithmConfig(dpo_beta=0.5))
    >>> round(found.loss, 4), found.slopes
    (0.6931, (-0.25, 0.25))
    """
    kind, beta = config.preference_loss, config.dpo_beta
    answers = (chosen, rejected)
    scales = [beta / each.tokens if kind in ("length_normalised", "simpo") else beta for each in answers]
    worth = [each.logprob if kind == "simpo" else each.gain for each in answers]
    first, second = (scale * value for scale, value in zip(scales, worth, strict=True))
    if kind == "ipo":
        apart = (first - second) / beta - 1.0 / (2.0 * beta)
        return PairLoss(apart * apart, (2.0 * apart, -2.0 * apart), (first, second))
    wanted = first - second - (config.preference_margin if kind == "simpo" else 0.0)
    slope = -_sigmoid(-wanted)
    return PairLoss(_softplus(-wanted), (slope * scales[0], -slope * scales[1]), (first, second))


@dataclass(frozen=True)
class AnswerLoss:
    """`slope` is the derivative by log p of the answer."""

    loss: float
    slope: float
    right: bool
    """Whether a good answer has gained more than the reference point, a bad one less."""


def reference_point(mismatched: Sequence[ScoredAnswer]) -> float:
    """How far the policy has gone from its reference on answers that have nothing to do with their prompts."""
    return max(0.0, math.fsum(each.gain for each in mismatched) / len(mismatched)) if mismatched else 0.0


def answer_loss(answer: ScoredAnswer, good: bool, point: float, config: AlgorithmConfig) -> AnswerLoss:
    """The loss of one good or bad answer; `point` is the reference point, which has no gradient."""
    weight, sign = (config.kto_good_weight, 1.0) if good else (config.kto_bad_weight, -1.0)
    beta = config.dpo_beta
    value = _sigmoid(sign * beta * (answer.gain - point))
    slope = -weight * sign * beta * value * (1.0 - value)
    return AnswerLoss(weight * (1.0 - value), slope, sign * (answer.gain - point) > 0)


def _sigmoid(value: float) -> float:
    return 1.0 / (1.0 + math.exp(-value)) if value >= 0 else math.exp(value) / (1.0 + math.exp(value))


def _softplus(value: float) -> float:
    return max(value, 0.0) + math.log1p(math.exp(-abs(value)))
