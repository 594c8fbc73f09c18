"""Agreement of rewards and labels on the order of answers.

labels = [1, 2, 3]                          what people say
rewards = [0.1, 0.8, 0.8]                   what the judge says
concordance(labels, rewards).accuracy       2.5 of 3 pairs in order: a tie counts half
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from astune.judging.agreement import same_length
from astune.support.statistics import without_noise


@dataclass(frozen=True)
class Concordance:
    """Pairs of examples whose labels differ: in the same order by score, in the opposite one, or tied in score."""

    concordant: int
    discordant: int
    tied: int

    @property
    def pairs(self) -> int:
        return self.concordant + self.discordant + self.tied

    @property
    def accuracy(self) -> float | None:
        """Share of pairs in the same order, ties half. With two labels it is the area under the ROC curve."""
        return (self.concordant + self.tied / 2) / self.pairs if self.pairs else None

    def __add__(self, other: Concordance) -> Concordance:
        return Concordance(
            self.concordant + other.concordant, self.discordant + other.discordant, self.tied + other.tied
        )


def concordance(labels: Sequence[float], scores: Sequence[float]) -> Concordance:
    """
    >>> concordance([1, 2, 3], [0.1, 0.8, 0.8])
    Concordance(concordant=2, discordant=0, tied=1)
    """
    same_length("concordance", labels, scores)
    scores = without_noise(scores)
    below: list[float] = []  # scores of examples with a lower label, sorted: ranks are found by bisection
    concordant = discordant = tied = 0
    for _, equal in groupby(sorted(zip(labels, scores, strict=True)), key=lambda pair: pair[0]):
        found = [score for _, score in equal]
        for score in found:
            low, high = bisect_left(below, score), bisect_right(below, score)
            concordant, tied, discordant = concordant + low, tied + high - low, discordant + len(below) - high
        for score in found:
            insort(below, score)
    return Concordance(concordant, discordant, tied)


def spearman(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Rank correlation (C. Spearman, 1904): Pearson's of the ranks, equal values having the mean of theirs. None where
    one side is constant.

    >>> spearman([1, 2, 3], [0.1, 0.8, 0.8])
    0.8660...
    """
    same_length("spearman", first, second)
    if len(first) < 2:
        return None
    ranks = [_ranks(without_noise(first)), _ranks(without_noise(second))]
    middle = (len(first) + 1) / 2
    together = math.fsum((a - middle) * (b - middle) for a, b in zip(*ranks, strict=True))
    spread = math.prod(math.fsum((rank - middle) ** 2 for rank in side) for side in ranks)
    return max(-1.0, min(1.0, together / math.sqrt(spread))) if spread else None


def _ranks(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    return [(bisect_left(ordered, value) + bisect_right(ordered, value) + 1) / 2 for value in values]
