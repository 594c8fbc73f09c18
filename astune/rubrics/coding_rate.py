"""Select a small set of criteria that help and differ from each other, by the coding rate.

The coding rate of vectors Z is the number of nats that it takes to write them down up to an error of eps:
R(Z) = 1/2 logdet(I + d / (n eps^2) Z Z^T) (Ma et al. 2007, "Segmentation of multivariate mixed data via lossy coding").
A criterion that repeats others adds little to it. Auto-Rubric (arXiv 2510.17314) selects criteria by what they add.

Here n is the number of candidates, not of those selected, and stays the same throughout, so that R never falls when
a criterion is added and each adds the less, the more there are (with n growing neither holds). n vectors span no more
than n dimensions, so d = n.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

from astune.rubrics.similarity import gram

ERROR = 0.5
"""eps: the larger, the less a criterion adds that is like another."""

SMALLEST_GAIN = 0.1
"""Share of the first criterion's gain below which nothing more is selected."""


def coding_rate(likeness: Sequence[Sequence[float]], eps: float = ERROR) -> float:
    """R in nats of vectors of which `likeness` has the inner products, by Cholesky's decomposition.

    >>> round(coding_rate([[1.0, 0.0], [0.0, 1.0]], eps=1.0), 4) == round(math.log(2), 4)
    True
    """
    factor: list[list[float]] = []
    rate = 0.0
    for i, products in enumerate(likeness):
        row: list[float] = []
        for j in range(i):
            done = math.fsum(a * b for a, b in zip(row, factor[j], strict=False))
            row.append((products[j] / eps**2 - done) / factor[j][j])
        pivot = 1.0 + products[i] / eps**2 - math.fsum(value * value for value in row)
        row.append(math.sqrt(pivot))
        factor.append(row)
        rate += 0.5 * math.log(pivot)
    return rate


def select_criteria(texts: Sequence[str], helps: Sequence[float], at_most: int, seed: int) -> list[int]:
    """Indices of the criteria selected, the most useful first: each is the one with the largest product of what it
    adds to the coding rate and how much it helps. None that does not help (`helps` <= 0) is taken.

    The set depends on the texts and what helps, not on their order: equal products go by a digest of seed and text.
    """
    candidates = [index for index, value in enumerate(helps) if value > 0]
    likeness = gram([texts[index] for index in candidates])
    tie_break = [hashlib.sha256(f"{seed}\n{texts[index]}".encode()).hexdigest() for index in candidates]
    rows: list[list[float]] = [[] for _ in candidates]  # of Cholesky's factor, a column for each one selected
    selected: list[int] = []
    first = 0.0
    while len(selected) < min(at_most, len(candidates)):
        gains = {
            i: 0.5 * math.log(_pivot(rows[i])) * helps[candidates[i]]
            for i in range(len(candidates))
            if i not in selected
        }
        best = max(gains, key=lambda i: (round(gains[i], 12), tie_break[i]))
        first = first or gains[best]
        if gains[best] < SMALLEST_GAIN * first:
            break
        column, root = list(rows[best]), math.sqrt(_pivot(rows[best]))
        for i, row in enumerate(rows):
            done = math.fsum(a * b for a, b in zip(row, column, strict=True))
            row.append((likeness[i][best] / ERROR**2 - done) / root)
        selected.append(best)
    return [candidates[i] for i in selected]


def _pivot(row: Sequence[float]) -> float:
    """1 + 1 / eps^2, the diagonal of a unit vector, less what those selected have of it."""
    return 1.0 + 1.0 / ERROR**2 - math.fsum(value * value for value in row)
