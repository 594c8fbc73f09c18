"""Figures over tasks with the uncertainty that comes of having few tasks. Tasks are the unit: attempts at one task are
alike, so they count as one value."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from itertools import compress, takewhile
from typing import NamedTuple, TypeVar

T = TypeVar("T")

CONFIDENCE = 0.95
RESAMPLES = 1000
NOISE = 1e-9
"""Part of the larger of two numbers, or of the largest of several, below which a difference is none."""
SMALL = 1e-5
"""For smaller numbers the noise is a part of this one: what 0.1 + 0.2 - 0.3 leaves is 0."""
GRID = 10**9
"""Differences are compared as multiples of 1/GRID, so that equal sums are equal whatever the order of adding."""
MOST_SUMS = 100_000
"""Different sums up to which the permutation test is exact."""
DRAWN = 20_000
"""Permutations that are drawn beyond that."""


class MeanOverTasks(NamedTuple):
    """A mean over `n` tasks and its 95 % interval, which is None where the values tell nothing of their spread."""

    mean: float
    interval: tuple[float, float] | None
    n: int


class PairedTest(NamedTuple):
    """Two-sided `p` of a paired permutation test over `n` tasks; `exact` if all permutations were counted."""

    p: float
    exact: bool
    n: int


def estimate(values: Sequence[float], *, share: bool = False) -> MeanOverTasks:
    """The mean of one value per task with its percentile bootstrap interval (Efron 1979; 1000 resamples of the tasks,
    always the same ones). Where all values are equal a bootstrap sees no spread: of a `share` that is 0 or 1 for every
    task the interval is then the exact binomial one (Clopper and Pearson 1934), of other values there is none.

    >>> estimate([1.0, 1.0, 1.0, 1.0], share=True)
    MeanOverTasks(mean=1.0, interval=(0.39..., 1.0), n=4)
    >>> low, high = estimate([0.0, 1.0] * 50).interval
    >>> 0.39 <= low <= 0.42, 0.58 <= high <= 0.61
    (True, True)
    """
    n = len(values)
    mean = math.fsum(values) / n
    if min(values) < max(values):
        return MeanOverTasks(mean, _bootstrap(values), n)
    if not share or mean not in (0.0, 1.0):
        return MeanOverTasks(mean, None, n)
    end = ((1 - CONFIDENCE) / 2) ** (1 / n)
    return MeanOverTasks(mean, (end, 1.0) if mean else (0.0, 1 - end), n)


def _bootstrap(values: Sequence[float]) -> tuple[float, float]:
    n = len(values)
    draw = random.Random(n)
    means = sorted(math.fsum(draw.choices(values, k=n)) / n for _ in range(RESAMPLES))
    tail = round(RESAMPLES * (1 - CONFIDENCE) / 2)
    return means[tail], means[-1 - tail]


def pass_at_k(attempts: int, passed: int, k: int) -> float:
    """The chance that at least one of `k` attempts passes, estimated without bias from `attempts` of which `passed`
    did: 1 - C(attempts - passed, k) / C(attempts, k) (Chen et al. 2021, arXiv 2107.03374).

    >>> pass_at_k(4, 1, 2), pass_at_k(4, 3, 2)
    (0.5, 1.0)
    """
    return 1.0 - math.comb(attempts - passed, k) / math.comb(attempts, k)


def permutation_test(differences: Sequence[float]) -> PairedTest:
    """Test whether the mean of one difference per task is 0: Fisher's permutation test, which flips signs. `p` is the
    share of all 2^n flips whose sum is at least as far from 0 as the one that was found; beyond 100,000 different sums
    it is estimated from 20,000 drawn flips. Of differences in success at single attempts it is McNemar's exact test.

    >>> permutation_test([1.0, 1.0, 1.0, 1.0, 1.0])
    PairedTest(p=0.0625, exact=True, n=5)
    """
    steps = [abs(round(difference * GRID)) for difference in differences]
    found = abs(sum(round(difference * GRID) for difference in differences)) - len(steps)  # less what rounding may add
    counts = {0: 1}
    for step in filter(None, steps):
        flipped: dict[int, int] = {}
        for total, count in counts.items():
            for sign in (step, -step):
                flipped[total + sign] = flipped.get(total + sign, 0) + count
        counts = flipped
        if len(counts) > MOST_SUMS:
            return PairedTest(_draw(steps, found), False, len(steps))
    as_far = sum(count for total, count in counts.items() if abs(total) >= found)
    return PairedTest(as_far / sum(counts.values()), True, len(steps))


def holm(values: Sequence[float]) -> list[float]:
    """The p values of several tests, corrected so that the chance of one or more false findings among all of them is at
    most what each says (Holm 1979).

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    corrected, most = list(values), 0.0
    for place, number in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        most = max(most, min(1.0, values[number] * (len(values) - place)))
        corrected[number] = most
    return corrected


def quantile(values: Sequence[float], part: float) -> float:
    """The least value that at least `part` of all do not exceed.

    >>> quantile([4.0, 1.0, 3.0, 2.0], 0.5), quantile([4.0, 1.0, 3.0, 2.0], 0.95)
    (2.0, 4.0)
    """
    return sorted(values)[max(0, math.ceil(part * len(values) - NOISE) - 1)]


def _draw(steps: Sequence[int], found: int) -> float:
    """The flip that was found counts as one of those drawn, so that p is never 0 (Phipson and Smyth 2010)."""
    draw, n, whole = random.Random(len(steps)), len(steps), sum(steps)
    turned, digits = steps[::-1], bytes.maketrans(b"01", b"\0\1")
    as_far = 0
    for _ in range(DRAWN):
        signs = f"{draw.getrandbits(n):0{n}b}".encode().translate(digits)
        as_far += abs(2 * sum(compress(turned, signs)) - whole) >= found
    return (1 + as_far) / (1 + DRAWN)


def exceeds(one: float, other: float) -> bool:
    """Tell whether `one` is greater than `other` by more than rounding makes of it.

    >>> exceeds(0.1 + 0.2, 0.3), exceeds(0.31, 0.3)
    (False, True)
    """
    return one - other > _noise((one, other))


def pair_apart(items: Iterable[T], worth: Callable[[T], float]) -> list[tuple[T, T]]:
    """The best with the worst, the second best with the second worst and so on, as long as they differ.

    >>> pair_apart([1, 3, 2, 3, 2], float)
    [(3, 1), (3, 2)]
    """
    ranked = sorted(items, key=lambda item: -worth(item))
    pairs = zip(ranked, reversed(ranked), strict=True)
    return [*takewhile(lambda pair: exceeds(worth(pair[0]), worth(pair[1])), pairs)]


def without_noise(values: Sequence[float]) -> list[float]:
    """The values; those that differ by rounding become the least of them.

    >>> without_noise([0.1 + 0.2, 0.3, 0.1])
    [0.3, 0.3, 0.1]
    """
    noise, found = _noise(values), list(map(float, values))
    least = -float("inf")
    for place in sorted(range(len(found)), key=found.__getitem__):
        if found[place] - least > noise:
            least = found[place]
        found[place] = least
    return found


def _noise(values: Sequence[float]) -> float:
    return NOISE * max([SMALL, *map(abs, values)])
