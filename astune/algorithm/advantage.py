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
import sys
from collections.abc import Callable, Sequence

AdvantageFunction = Callable[[Sequence[float]], "list[float]"]

STD_FLOOR = 1e-6
"""Rewards of a group that differ by less carry no signal."""
HUGE = 1e100
"""Rewards beyond it are computed with in units of their own, as their sums and squares would be no numbers."""


def dr_grpo(rewards: Sequence[float]) -> list[float]:
    """Reward minus the mean of the group (Dr. GRPO, arXiv 2503.20783): no division by the spread, which would
    make very easy and very hard tasks count more."""
    unit = _unit(rewards)
    mean = math.fsum(reward / unit for reward in rewards) / len(rewards)
    most = sys.float_info.max
    return [min(max((reward / unit - mean) * unit, -most), most) for reward in rewards]


def grpo(rewards: Sequence[float]) -> list[float]:
    """Reward minus the mean of the group, in units of its standard deviation (GRPO, arXiv 2402.03300)."""
    unit = _unit(rewards)
    centred = dr_grpo([reward / unit for reward in rewards])
    std = math.sqrt(math.fsum(value * value for value in centred) / len(centred))
    return [0.0 if std < STD_FLOOR else value / std for value in centred]


def _unit(rewards: Sequence[float]) -> float:
    """1, or for huge rewards a power of two near the largest: dividing by either changes no digit."""
    largest = max(map(abs, rewards))
    return 1.0 if largest < HUGE else math.ldexp(1.0, math.frexp(largest)[1] - 1)


ADVANTAGES = {
    "grpo": "astune.algorithm.advantage:grpo",
    "dr_grpo": "astune.algorithm.advantage:dr_grpo",
}
