"""Calibration of rewards: of the answers that get 0.7, 70 % should be right.

rewards = [0.9, 0.8, 0.9, 0.1]
right = [True, False, True, False]
calibration_error(calibration_bins(rewards, right, count=2))        0.175
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from astune.judging.agreement import Interval, wilson


@dataclass(frozen=True)
class Bin:
    """The `n` answers with a reward from `low` up to `high`: below it, or at most it in the last bin."""

    low: float
    high: float
    n: int
    right: int
    mean_reward: float
    interval: Interval
    """Of the share that is right, by `wilson`."""

    @property
    def share(self) -> float:
        return self.right / self.n


def calibration_bins(rewards: Sequence[float], right: Sequence[bool], count: int = 10) -> list[Bin]:
    """Bins of equal width from 0 to 1, those without answers left out. ValueError for a reward outside of 0 to 1.

    >>> [(bin.low, bin.n, bin.right) for bin in calibration_bins([0.9, 0.8, 0.1], [True, False, False], count=2)]
    [(0.0, 1, 0), (0.5, 2, 1)]
    """
    if len(rewards) != len(right):
        raise ValueError(f"calibration_bins: {len(rewards)} rewards and {len(right)} labels")
    members: list[list[int]] = [[] for _ in range(count)]
    for index, reward in enumerate(rewards):
        if not 0 <= reward <= 1:
            raise ValueError(f"calibration_bins: reward {reward} is not from 0 to 1")
        members[min(int(reward * count), count - 1)].append(index)
    return [_bin(place, count, found, rewards, right) for place, found in enumerate(members) if found]


def _bin(place: int, count: int, members: list[int], rewards: Sequence[float], right: Sequence[bool]) -> Bin:
    n, are_right = len(members), sum(right[index] for index in members)
    mean = math.fsum(rewards[index] for index in members) / n
    return Bin(place / count, (place + 1) / count, n, are_right, mean, wilson(are_right, n))


def calibration_error(bins: Sequence[Bin]) -> float | None:
    """Expected calibration error (Naeini et al., 2015): how far the mean reward of a bin is from the share that is
    right in it, over all answers. None without answers."""
    n = sum(bin.n for bin in bins)
    return math.fsum(bin.n * abs(bin.mean_reward - bin.share) for bin in bins) / n if n else None
