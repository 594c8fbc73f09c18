"""Advantage estimators: how much better an episode was than the others of its group.

An estimator takes the rewards of the judged episodes of one group and gives one advantage for each, in the
same order. Chosen by `astune.algorithm.advantage`; a plug-in is any function with the same signature.

    >>> grpo([1.0, 0.0, 0.0, 1.0])
    [1.0, -1.0, -1.0, 1.0]
    >>> dr_grpo([1.0, 0.0, 0.0, 1.0])
    [0.5, -0.5, -0.5, 0.5]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

AdvantageFunction = Callable[[Sequence[float]], "list[float]"]

STD_FLOOR = 1e-6
"""Rewards of a group that differ by less carry no signal."""


def dr_grpo(rewards: Sequence[float]) -> list[float]:
    """Reward minus the mean of the group (Dr. GRPO, arXiv 2503.20783): no division by the spread, which would
    make very easy and very hard tasks count more."""
    mean = math.fsum(rewards) / len(rewards)
    return [reward - mean for reward in rewards]


def grpo(rewards: Sequence[float]) -> list[float]:
    """Reward minus the mean of the group, in units of its standard deviation (GRPO, arXiv 2402.03300)."""
    centred = dr_grpo(rewards)
    std = math.sqrt(math.fsum(value * value for value in centred) / len(centred))
    return [0.0 if std < STD_FLOOR else value / std for value in centred]


ADVANTAGES = {
    "grpo": "astune.algorithm.advantage:grpo",
    "dr_grpo": "astune.algorithm.advantage:dr_grpo",
}
