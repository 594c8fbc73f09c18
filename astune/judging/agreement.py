"""Agreement of a judge with labels: figures, their intervals, and the calibration of rewards.

    labels = [True, True, False, False]         what people say
    given = [True, False, False, False]         what the judge says
    cohen_kappa(labels, given)                  0.5: half way from chance to perfect
    calibration_error(calibration_bins([0.9, 0.8, 0.1], [True, True, False], count=2))
                                                0.13: of the answers that get 0.7, 70 % should be right

An example of which a judge could not tell has no place in either list: it is neither agreement nor disagreement, and
is to be counted beside the figures. A figure is None where the data do not say what it is: kappa, for example, where
both name the same class every time, so that chance alone agrees always.

These few lines stand here instead of scipy and scikit-learn, which agree with them to 15 digits: both are 146 MB
installed, take seconds to import, and have neither clusters nor None.
"""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Interval = tuple[float, float]
"""Lower and upper end."""
LEVEL, Z = 0.95, 1.96
"""What an interval is to hold, and how many standard deviations of a normal distribution hold that to either side."""
RESAMPLES = 500
"""Draws for an interval: enough for two digits, and seconds for thousands of answers."""
C = TypeVar("C", bound=Hashable)


def wilson(successes: float, n: float) -> Interval:
    """Interval of a share by Wilson's score test (E. B. Wilson, 1927): never outside 0 to 1, and wide where it should
    be, at 0 of n and n of n too. Without trials it is 0 to 1.

    >>> wilson(81, 263)
    (0.2552..., 0.3662...)
    """
    if not 0 <= successes <= n:
        raise ValueError(f"wilson: {successes} successes of {n}")
    if n == 0:
        return 0.0, 1.0
    share, square = successes / n, Z * Z
    centre = share + square / (2 * n)
    spread = Z * math.sqrt(share * (1 - share) / n + square / (4 * n * n))
    low, high = ((centre + side * spread) / (1 + square / n) for side in (-1, 1))
    return (max(0.0, low) if successes else 0.0), (min(1.0, high) if successes < n else 1.0)


def wilson_by_cluster(right: Sequence[bool], clusters: Sequence[Hashable]) -> Interval:
    """`wilson` of the share of `right` where examples of a cluster, such as answers to one task, go together: of as
    many independent examples as the clusters are worth (Kish's design effect; Korn and Graubard, 1998), at most all.
    Where all are alike, nothing tells how much they go together, and each cluster counts once.

    Ten tasks with four answers each, right on all answers or on none: about as wide as ten examples.
    """
    same_length("wilson_by_cluster", right, clusters)
    n, total = len(right), sum(right)
    share = total / n if n else 0.0
    off: dict[Hashable, float] = defaultdict(float)
    for is_right, cluster in zip(right, clusters, strict=True):
        off[cluster] += is_right - share
    if len(off) == n:
        return wilson(total, n)
    worth = float(len(off))  # examples that stand for themselves: from one for each cluster to all
    if 0 < total < n and len(off) > 1:
        variance = math.fsum(value * value for value in off.values()) / n**2 * len(off) / (len(off) - 1)
        worth = n if variance == 0 else min(n, share * (1 - share) / variance)
    return wilson(share * worth, worth)


def bootstrap_interval(
    figure: Callable[[Sequence[int]], float | None],
    n: int,
    *,
    clusters: Sequence[Hashable] | None = None,
    seed: int = 0,
) -> Interval | None:
    """Percentile interval of `figure(indices)`, of examples drawn with replacement (Efron, 1979), or of whole clusters
    of them. Equal arguments give equal intervals. None if more than half of the draws leave `figure` undefined,
    and if all draws give the same: such examples do not show how much it varies.

    >>> right = [True] * 8 + [False] * 2
    >>> bootstrap_interval(lambda chosen: sum(right[i] for i in chosen) / len(chosen), n=10)
    (0.5, 1.0)
    """
    groups = _members(range(n) if clusters is None else clusters)
    if sum(map(len, groups)) != n:
        raise ValueError(f"bootstrap_interval: {n} examples, but {sum(map(len, groups))} clusters")
    if n == 0:
        return None
    rng = random.Random(seed)
    drawn = ([index for group in rng.choices(groups, k=len(groups)) for index in group] for _ in range(RESAMPLES))
    found = sorted(value for indices in drawn if (value := figure(indices)) is not None)
    if 2 * len(found) < RESAMPLES or found[0] == found[-1]:
        return None
    tail = (1 - LEVEL) / 2
    return _quantile(found, tail), _quantile(found, 1 - tail)


def _members(clusters: Sequence[Hashable]) -> list[list[int]]:
    members: dict[Hashable, list[int]] = defaultdict(list)
    for index, cluster in enumerate(clusters):
        members[cluster].append(index)
    return [*members.values()]


def _quantile(values: Sequence[float], share: float) -> float:
    """A quantile of sorted values, linear between neighbours."""
    place = share * (len(values) - 1)
    below = math.floor(place)
    above = min(below + 1, len(values) - 1)
    return values[below] + (place - below) * (values[above] - values[below])


@dataclass(frozen=True)
class Confusion(Generic[C]):
    """`counts[label, given]` is how often the judge said `given` of what people call `label`."""

    classes: tuple[C, ...]
    counts: Mapping[tuple[C, C], int]

    @property
    def n(self) -> int:
        return sum(self.counts.values())

    @property
    def agreed(self) -> int:
        return sum(self.counts[name, name] for name in self.classes)

    def precision(self, name: C) -> float | None:
        """The share of the examples that the judge calls `name` whose label is `name`."""
        called = sum(self.counts[label, name] for label in self.classes)
        return self.counts[name, name] / called if called else None

    def recall(self, name: C) -> float | None:
        """The share of the examples with the label `name` that the judge calls `name`."""
        are = sum(self.counts[name, given] for given in self.classes)
        return self.counts[name, name] / are if are else None


def confusion(labels: Sequence[C], given: Sequence[C], classes: Sequence[C] = ()) -> Confusion[C]:
    """Classes stand in the order of `classes`, then as they first come up.

    >>> confusion([True, True, False], [True, False, False]).counts[True, False]
    1
    """
    same_length("confusion", labels, given)
    found = Counter(zip(labels, given, strict=True))
    names = tuple(dict.fromkeys([*classes, *labels, *given]))
    return Confusion(names, {(label, said): found[label, said] for label in names for said in names})


def cohen_kappa(labels: Sequence[Hashable], given: Sequence[Hashable]) -> float | None:
    """Agreement beyond chance (J. Cohen, 1960): (observed - expected) / (1 - expected), the expected agreement being
    that of two who name their classes as often as these do but independently. 1 is perfect, 0 chance.

    >>> cohen_kappa([True, True, False, False], [True, False, False, False])
    0.5
    """
    same_length("cohen_kappa", labels, given)
    n = len(labels)
    label_counts, given_counts = Counter(labels), Counter(given)
    by_chance = sum(count * given_counts[name] for name, count in label_counts.items())
    if by_chance == n * n:
        return None
    agreed = sum(label == said for label, said in zip(labels, given, strict=True))
    return (agreed * n - by_chance) / (n * n - by_chance)


def quadratic_kappa(labels: Sequence[float], given: Sequence[float]) -> float | None:
    """Kappa of numbers with quadratic weights (Cohen, 1968): 1 minus the mean squared difference over the one by
    chance. The numbers need not be whole; both must be on the same scale. It is also Lin's concordance (1989).

    >>> quadratic_kappa([1, 2, 3], [1, 2, 2])
    0.6666...
    """
    same_length("quadratic_kappa", labels, given)
    if not labels:
        return None
    (mean, variance), (given_mean, given_variance) = _moments(labels), _moments(given)
    by_chance = variance + given_variance + (mean - given_mean) ** 2
    if by_chance == 0:
        return None
    squares = math.fsum((label - said) ** 2 for label, said in zip(labels, given, strict=True)) / len(labels)
    return 1 - squares / by_chance


def _moments(values: Sequence[float]) -> tuple[float, float]:
    """Mean and variance, exactly 0 for values that are all equal."""
    if min(values) == max(values):
        return float(values[0]), 0.0
    mean = math.fsum(values) / len(values)
    return mean, math.fsum((value - mean) ** 2 for value in values) / len(values)


def mcnemar(first: Sequence[bool], second: Sequence[bool]) -> float:
    """Two-sided p of the exact test (McNemar, 1947) of two judges being right equally often, from where only one of
    them is right. Both are asked about the same examples, in the same order.

    Only the first right on 2, only the second on 10: 2 * (1 + 12 + 66) / 2**12 = 0.0386
    """
    same_length("mcnemar", first, second)
    only_first = sum(a and not b for a, b in zip(first, second, strict=True))
    only_second = sum(b and not a for a, b in zip(first, second, strict=True))
    differ = only_first + only_second
    tail = sum(math.comb(differ, k) for k in range(min(only_first, only_second) + 1))
    return min(1.0, float(2 * tail / (1 << differ)))


def same_length(name: str, first: Sequence[object], second: Sequence[object]) -> None:
    """ValueError that begins with `name` for two lists that cannot be about the same examples."""
    if len(first) != len(second):
        raise ValueError(f"{name}: {len(first)} and {len(second)} values, expected as many of both")


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
