"""How far raters agree with each other, and with the judge, on the pairs that both have seen."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations

from astune.judging.agreement import Interval, cohen_kappa, wilson
from astune.online.store.comparisons import AnswerPair, RatersVote

JUDGE = "the judge"
"""Stands among the raters for what a judge or the rewards chose."""


@dataclass(frozen=True)
class RatersAgreement:
    """Two raters, `n` pairs that both have voted on, the share on which they chose the same with its 95 % interval, and
    Cohen's kappa; None where chance alone agrees always."""

    raters: tuple[str, str]
    n: int
    share: float
    interval: Interval
    kappa: float | None


def agreements(votes: Iterable[RatersVote], pairs: Iterable[AnswerPair]) -> list[RatersAgreement]:
    """Every two raters with a pair that both have voted on. Skipped pairs do not count.

    >>> votes = [RatersVote(1, "ana", "first"), RatersVote(1, "bo", "first"), RatersVote(2, "ana", "tie")]
    >>> [(each.raters, each.n, each.share) for each in agreements(votes, [])]
    [(('ana', 'bo'), 1, 1.0)]
    """
    chosen: dict[str, dict[int, str]] = defaultdict(dict)
    for vote in votes:
        if vote.choice != "skip":
            chosen[vote.rater][vote.comparison] = vote.choice
    judged = {pair.number: pair.judged for pair in pairs if pair.judged is not None}
    names = sorted(chosen)
    found = []
    for one, other in [*combinations(names, 2), *((name, JUDGE) for name in names)]:
        left, right = chosen[one], judged if other == JUDGE else chosen[other]
        both = sorted(left.keys() & right.keys())
        if both:
            mine, theirs = [left[number] for number in both], [right[number] for number in both]
            same = sum(a == b for a, b in zip(mine, theirs, strict=True))
            kappa = cohen_kappa(mine, theirs)
            found.append(RatersAgreement((one, other), len(both), same / len(both), wilson(same, len(both)), kappa))
    return found
