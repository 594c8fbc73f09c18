"""Advantage estimators: how much better an episode was than the others of its group.

An estimator takes the rewards of the judged episodes of one group and gives one advantage for each, in the same order;
rewards that differ by rounding are equal. Chosen by `astune.algorithm.advantage`; a plug-in is any function with the
same signature. Estimators that look at more than one group are in `step_advantage.py`.

    >>> grpo([1.0, 0.0, 0.0, 1.0])
    [1.0, -1.0, -1.0, 1.0]
    >>> dr_grpo([1.0, 0.0, 0.0, 1.0])
    [0.5, -0.5, -0.5, 0.5]
    >>> rloo([1.0, 0.0, 0.0])
    [1.0, -0.5, -0.5]
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence

from astune.support.statistics import exceeds, without_noise
from astune.support.user_values import LARGEST

AdvantageFunction = Callable[[Sequence[float]], "list[float]"]

STD_FLOOR = 1e-6
"""A standard deviation below it is not divided by: the rewards carry no signal."""
RIGHT = 0.5
"""A reward above it is that of a right answer, where a verdict does not say which are."""
HUGE = 1e100
"""Rewards beyond it are computed with in units of their own, as their sums and squares would be no numbers."""


def dr_grpo(rewards: Sequence[float]) -> list[float]:
    """Reward minus the mean of the group (Dr. GRPO, arXiv 2503.20783): no division by the spread, which would
    make very easy and very hard tasks count more."""
    values, unit = without_noise(rewards), _unit(rewards)
    if len(set(values)) == 1:  # their mean may be another number than they are, by rounding
        return [0.0] * len(values)
    mean = math.fsum(value / unit for value in values) / len(values)
    most = sys.float_info.max
    return [min(max((value / unit - mean) * unit, -most), most) for value in values]


def grpo(rewards: Sequence[float]) -> list[float]:
    """Reward minus the mean of the group, in units of its standard deviation (GRPO, arXiv 2402.03300)."""
    unit = _unit(rewards)
    centred = dr_grpo([reward / unit for reward in rewards])
    std = math.sqrt(math.fsum(value * value for value in centred) / len(centred))
    return [0.0 if std < STD_FLOOR else value / std for value in centred]


def rloo(rewards: Sequence[float]) -> list[float]:
    """Reward minus the mean of the others (RLOO, arXiv 2402.14740): an own reward is no part of its baseline, so the
    gradient is unbiased. It is n / (n - 1) times `dr_grpo`; a lone reward has no others and gets 0."""
    others = len(rewards) - 1
    scale = len(rewards) / others if others else 0.0
    return [min(max(value * scale, -LARGEST), LARGEST) for value in dr_grpo(rewards)]


def rloo_clamped(rewards: Sequence[float]) -> list[float]:
    """`rloo`, but what is wrong is never encouraged and what is right never discouraged, as in AgentRL: rewards up to
    0.5 get at most 0, the others at least 0. For rewards from 0 to 1. The sum over a group is no longer 0.

    >>> rloo_clamped([0.0, 0.4, 0.9])
    [-0.65, -0.04999999999999999, 0.7]
    """
    return [
        max(value, 0.0) if exceeds(reward, RIGHT) else min(value, 0.0)
        for reward, value in zip(rewards, rloo(rewards), strict=True)
    ]


def _unit(rewards: Sequence[float]) -> float:
    """1, or for huge rewards a power of two near the largest: dividing by either changes no digit."""
    largest = max(map(abs, rewards))
    return 1.0 if largest < HUGE else math.ldexp(1.0, math.frexp(largest)[1] - 1)


ADVANTAGES = {
    "grpo": "astune.algorithm.advantage:grpo",
    "dr_grpo": "astune.algorithm.advantage:dr_grpo",
    "rloo": "astune.algorithm.advantage:rloo",
    "rloo_clamped": "astune.algorithm.advantage:rloo_clamped",
    "step_wise_grpo": "astune.algorithm.step_advantage:StepWiseGrpo",
    "reinforce_pp": "astune.algorithm.step_advantage:ReinforcePP",
    "reinforce_pp_baseline": "astune.algorithm.step_advantage:ReinforcePPBaseline",
    "running_mean": "astune.algorithm.step_advantage:RunningMean",
    "gae": "astune.algorithm.step_advantage:ForCritic",
}
