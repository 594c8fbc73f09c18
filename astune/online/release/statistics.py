"""Statistics of a release, without the database: is the challenger better, is it worse, or is too little known?

People look at a running test again and again, so every answer here holds at every look: an interval covers the
difference at all looks together with probability 1 - alpha, and a `p` is below alpha at any look with probability alpha
at most, where nothing differs.

The unit is the user. Ratings of one user are alike, and counted as independent ones they cry wolf at most looks.
Shares change from stage to stage, and so do people's moods: arms are compared within a stage, and stages are then put
together, so that no arm is blamed for the days on which it had more of the traffic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

LEAST_UNITS = 20
"""Fewest rated users of either arm for an interval: it rests on a variance that fewer do not show."""
SRM_LEVEL = 0.001
"""A sample ratio is an alarm below it."""
SRM_PRIOR = 100.0
"""How narrow a wrong share is looked for around the right one, as a number of users."""
SEARCH_STEPS = 100

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class UnitTotals:
    """Sums of one metric, an entry for each unit, stage and arm: arrays of one length. A unit that changed its arm when
    the share widened has entries in both. Entries without a count say nothing."""

    unit: Array
    """Numbers from 0."""
    stage: Array
    challenger: Array
    """True in the challenger's arm."""
    total: Array
    """Sum of the values."""
    count: Array
    """Number of the values."""


@dataclass(frozen=True)
class Contrast:
    """The challenger's ratio less the champion's. `low` and `high` hold at every look."""

    champion: float
    challenger: float
    difference: float
    low: float
    high: float
    p: float
    units: tuple[int, int]
    """Number of units that said something: the champion's, the challenger's."""


class _Cells(NamedTuple):
    """Sums by stage and arm, and the entries that they are made of."""

    place: Array
    """The cell of each entry: twice the stage, and 1 more for the challenger."""
    seen: UnitTotals
    units: Array
    counts: Array
    ratios: Array
    weights: Array
    """Of each stage."""


def compare(seen: UnitTotals, effect: float, alpha: float = 0.05, least_units: int = LEAST_UNITS) -> Contrast | None:
    """Compare sum(total) / sum(count) of the arms. None where fewer than `least_units` of either arm said anything, or
    all said the same: that is too little to know, not no difference.

    With w(s) the weight of a stage, n(s) n'(s) / (n(s) + n'(s)) of its rated units, scaled to sum to 1, and R(s, a) the
    ratio of an arm in it:

        d = sum over s of w(s) (R(s, challenger) - R(s, champion))
        se^2 = sum over units of (the unit's influence on d, over all stages)^2         delta method, clustered
        interval = d -+ se sqrt(2 (1 + 1/x) log(sqrt(1 + x) / alpha))   with x = (effect / se)^2

    the asymptotic confidence sequence of Waudby-Smith et al. (arXiv 2103.06476), narrowest about where `effect` is
    found. An arm whose variance is less than that of both together counts with the latter: few users who happen to
    agree know nothing for certain.

    Args:
        effect: the smallest difference that matters, above 0.
    """
    cells = _sum_cells(seen)
    if cells is None:
        return None
    arms = cells.seen.challenger
    units = tuple(int(np.unique(cells.seen.unit[arms == arm]).size) for arm in (False, True))
    variance = _variance(cells)
    if min(units) < least_units or variance <= 0.0:
        return None
    champion, challenger = (float(cells.weights @ cells.ratios[:, arm]) for arm in (0, 1))
    found = challenger - champion
    x = effect**2 / variance
    half = math.sqrt(variance) * _width(x, alpha)
    p = math.exp(min(0.0, math.log1p(x) / 2 - found**2 * x / (2 * variance * (1 + x))))
    return Contrast(champion, challenger, found, found - half, found + half, p, (units[0], units[1]))


def _width(x: float, alpha: float) -> float:
    return math.sqrt(2 * (1 + 1 / x) * (math.log1p(x) / 2 - math.log(alpha)))


def _sum_cells(seen: UnitTotals) -> _Cells | None:
    """Sum what counts by stage and arm, of stages with two units in both arms; None if there is no such stage."""
    stages, stage = np.unique(seen.stage, return_inverse=True)
    place = 2 * stage + seen.challenger
    units = np.bincount(place, seen.count > 0, 2 * stages.size).reshape(-1, 2)
    kept = (seen.count > 0) & (units.min(axis=1) >= 2)[stage]
    if not kept.any():
        return None
    if not kept.all():
        return _sum_cells(UnitTotals(*(column[kept] for column in vars(seen).values())))
    counts = np.bincount(place, seen.count, 2 * stages.size).reshape(-1, 2)
    totals = np.bincount(place, seen.total, 2 * stages.size).reshape(-1, 2)
    weights = units.prod(axis=1) / units.sum(axis=1)
    return _Cells(place, seen, units, counts, totals / counts, weights / weights.sum())


def _variance(cells: _Cells) -> float:
    """The variance of the difference over all units."""
    seen, place = cells.seen, cells.place
    each = (cells.units / cells.counts).ravel()[place]
    off = (seen.total - cells.ratios.ravel()[place] * seen.count) * each
    together = (cells.ratios * cells.counts).sum(axis=1) / cells.counts.sum(axis=1)
    off_both = (seen.total - together[place // 2] * seen.count) * each
    own = np.bincount(place, off**2).reshape(-1, 2) / (cells.units - 1)
    both = np.bincount(place // 2, off_both**2)[:, None] / (cells.units.sum(axis=1)[:, None] - 1)
    weights = cells.weights[:, None]
    influence = np.where(seen.challenger, 1.0, -1.0) * off
    influence *= (weights / np.sqrt(cells.units * (cells.units - 1))).ravel()[place]
    clustered = np.bincount(seen.unit, influence) @ np.bincount(seen.unit, influence)
    return float(clustered + (weights**2 * np.maximum(both - own, 0.0) / cells.units).sum())


def find_spread(seen: UnitTotals) -> float | None:
    """The variance of one unit's share in a ratio, of all that was seen, for a plan; None with fewer than
    `LEAST_UNITS`."""
    kept = seen.count > 0
    total, count = (np.bincount(seen.unit[kept], column[kept]) for column in (seen.total, seen.count))
    total, count = total[count > 0], count[count > 0]
    if count.size < LEAST_UNITS:
        return None
    off = (total - total.sum() / count.sum() * count) / count.mean()
    return float(off @ off / (count.size - 1))


def plan_units(effect: float, spread: float, share: float, alpha: float = 0.05, power: float = 0.8) -> int:
    """Count the rated users of both arms together at which `compare` tells a difference of `effect` with probability
    `power`, where `share` of them are the challenger's and `spread` is the variance of one (`find_spread`).

    >>> plan_units(0.1, 0.25, 0.5), plan_units(0.1, 0.25, 0.05)
    (1522, 8006)
    """
    low, high, sure = 0.0, 1000.0, NormalDist().inv_cdf(power)
    for _ in range(SEARCH_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if middle >= _width(middle**2, alpha) + sure else (middle, high)
    return math.ceil(high**2 * spread / effect**2 / (share * (1 - share)))


class SampleRatio(NamedTuple):
    """How well the numbers of users fit the share: `p` of Pearson's chi-square, which holds at one look, and
    `sequential`, which holds at every look."""

    p: float
    sequential: float

    @property
    def is_alarm(self) -> bool:
        return self.sequential < SRM_LEVEL


def check_ratio(champion: int, challenger: int, share: float) -> SampleRatio | None:
    """Check the users of one stage against the challenger's share in it. None where there is no choice.

    `sequential` is 1 over the likelihood ratio of a share drawn from a beta distribution around the right one (Lindon
    and Malek, arXiv 2011.03567), exact for any number of users.

    >>> check_ratio(500, 500, 0.5).is_alarm, check_ratio(9700, 300, 0.05).is_alarm
    (False, True)
    """
    n = champion + challenger
    if not 0.0 < share < 1.0 or n == 0:
        return None
    a, b = SRM_PRIOR * share, SRM_PRIOR * (1 - share)
    evidence = _log_beta(a + challenger, b + champion) - _log_beta(a, b)
    evidence -= challenger * math.log(share) + champion * math.log(1 - share)
    chi_square = (challenger - n * share) ** 2 / (n * share * (1 - share))
    return SampleRatio(math.erfc(math.sqrt(chi_square / 2)), math.exp(min(0.0, -evidence)))


class Count(NamedTuple):
    """`happened` of `cases`."""

    happened: float
    cases: float


def weigh_excess(champion: Count, challenger: Count, margin: float, dispersion: float = 1.0) -> float | None:
    """`p` of a challenger whose rate is above the champion's by at most `margin`, at every look: the fast rule. None
    where an arm has no cases.

    The likelihood with rates drawn from Jeffreys' prior, over the greatest likelihood with such a margin. It holds for
    any number of cases, so a handful of errors is enough. Counts are divided by their `dispersion`.

    >>> weigh_excess(Count(2, 400), Count(6, 8), 0.02) < 0.001, weigh_excess(Count(2, 400), Count(1, 8), 0.02)
    (True, 1.0)
    """
    if not champion.cases or not challenger.cases:
        return None
    (k, n), (k2, n2) = ((each.happened / dispersion, each.cases / dispersion) for each in (champion, challenger))
    if k2 / n2 <= k / n + margin:
        return 1.0
    if margin >= 1.0:
        return 1.0
    low, high = 0.0, 1.0 - margin

    def fit(rate: float) -> float:
        return _log_likelihood(k, n, rate) + _log_likelihood(k2, n2, rate + margin)

    for _ in range(SEARCH_STEPS):  # it is concave
        third = (high - low) / 3
        low, high = (low + third, high) if fit(low + third) < fit(high - third) else (low, high - third)
    mixed = sum(_log_beta(each + 0.5, of - each + 0.5) - _log_beta(0.5, 0.5) for each, of in ((k, n), (k2, n2)))
    return math.exp(min(0.0, fit((low + high) / 2) - mixed))


def find_dispersion(cells: Sequence[Count]) -> float:
    """Find how much more counts vary from minute to minute than chance has it, as where a user repeats what failed:
    Pearson's chi-square over its degrees of freedom, at least 1."""
    some = [each for each in cells if each.cases]
    rate = sum(each.happened for each in some) / max(1.0, sum(each.cases for each in some))
    if len(some) < 2 or not 0.0 < rate < 1.0:
        return 1.0
    off = math.fsum((each.happened - each.cases * rate) ** 2 / (each.cases * rate * (1 - rate)) for each in some)
    return max(1.0, off / (len(some) - 1))


def _log_likelihood(happened: float, cases: float, rate: float) -> float:
    found = 0.0
    for times, chance in ((happened, rate), (cases - happened, 1 - rate)):
        if times:
            found += times * math.log(chance) if chance > 0.0 else -math.inf
    return found


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
