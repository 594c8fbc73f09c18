"""The plan of a release: how many users and days it takes at today's traffic."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import sqlalchemy as sa

from astune.config.online import FeedbackConfig, ReleaseConfig
from astune.errors import StoreError
from astune.online.release.observed import observe_past
from astune.online.release.statistics import find_spread, plan_units

DAY = 86400.0
WINDOW = 28
"""Days that a plan looks back."""
POWER = 0.8


@dataclass(frozen=True)
class StagePlan:
    share: float
    units: int
    """Users who rate, of both versions together."""
    days: int | None
    """None: at this traffic it never has so many."""


@dataclass(frozen=True)
class ReleasePlan:
    metric: str
    effect: float
    mean: float
    spread: float
    """Variance between users, of one user's mean."""
    units: int
    """Users who rated in the last `days` days."""
    days: int
    stages: tuple[StagePlan, ...]


def plan_release(
    connection: sa.Connection,
    rules: ReleaseConfig,
    said: FeedbackConfig,
    now: float,
    shares: tuple[float, ...] | None = None,
) -> ReleasePlan:
    """Plan a test that tells `rules.effect` in `rules.metric` with a probability of 80 %, at `shares` or those of the
    stages, from how users differed and came in the last 28 days.

    Raises:
        StoreError: too few users rated.
    """
    seen, first = observe_past(connection, now - WINDOW * DAY)
    totals = seen.sum_metric(rules.metric, said)
    spread = find_spread(totals)
    raters = sorted(first[unit] for unit in np.unique(totals.unit[totals.count > 0]).tolist())
    if not spread:
        raise StoreError(
            f"{len(raters)} users gave {rules.metric!r} in the last {WINDOW} days, and not enough of them differ: "
            "nothing says how long a test would take"
        )
    began = min(first.values())
    days = max(1, math.ceil((now - began) / DAY))
    came = [math.ceil((each - began) / DAY + 1e-9) for each in raters]
    wanted = shares or tuple(share for share in rules.stages if share < 1.0)
    stages = []
    for share in wanted:
        units = plan_units(rules.effect, spread, share, rules.alpha, POWER)
        stages.append(StagePlan(share, units, _find_day(came, days, units)))
    mean = float(totals.total.sum() / totals.count.sum())
    return ReleasePlan(rules.metric, rules.effect, mean, spread, len(raters), days, tuple(stages))


def _find_day(came: list[int], days: int, units: int) -> int | None:
    """The day on which so many have come. Beyond the days that are known new ones go on to come as in their last half.

    >>> _find_day([1, 1, 2, 4], 4, 3), _find_day([1, 1, 2, 4], 4, 7), _find_day([1, 1], 4, 3)
    (2, 10, None)
    """
    if units <= len(came):
        return came[units - 1]
    half = days - days // 2
    a_day = sum(day > days - half for day in came) / half
    return None if a_day == 0.0 or days == 1 else days + math.ceil((units - len(came)) / a_day)
