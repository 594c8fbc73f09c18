"""Fit the weights of a rubric's criteria: ridge logistic regression on comparisons, no weight below zero.

A comparison is a pair of answers of which people found one better; with labels, every two answers with different
labels make one. The weights are those for which the weighted sum of the scores tells the better answer from the worse
with the largest margin, the idea of SVR (arXiv 2606.08077), here with a logistic loss:

    minimise   v mean log(1 + exp(-w . (scores of the better - scores of the worse)))  +  |w - prior|^2 / (2 * SPREAD^2)

over w >= 0. The prior is that criteria count as much as they are worth by themselves, for a handful of examples cannot
tell how they go together, and such simple weights are hard to beat where they cannot (Dawes 1979, "The robust beauty of
improper linear models"). It gives way as the number v of independent comparisons grows. A criterion with the wrong sign
gets 0, not a reward for missing it.
"""

from __future__ import annotations

import math
import operator
import random
from collections import Counter
from collections.abc import Sequence
from itertools import combinations

PRIOR = 2.0
"""Weight before any example: an answer that meets one criterion more is the better one with odds of e^2 to 1."""

SPREAD = 1.0
"""Standard deviation of a weight around the prior."""

MOST_COMPARISONS = 2000
"""Most comparisons; of more, so many are drawn: those of labels grow with the square of the answers."""

SWEEPS = 500
PRECISE = 1e-9
"""It ends where no weight moves by more; some tens of sweeps over the weights suffice."""


def fit_weights(
    scores: Sequence[Sequence[float]],
    labels: Sequence[float],
    pairs: Sequence[tuple[int, int]],
    seed: int,
    worth: Sequence[float] | None = None,
) -> list[float]:
    """Weights of the criteria, at least one above zero, their mean 1, rounded to 3 digits.

    `scores` has for each answer its score from 0 to 1 by each criterion. Answers are either labelled, `labels` in the
    same order, or paired, `pairs` of indices (better, worse); the other one is empty. Without any comparison, and where
    every criterion has the wrong sign, all weights are 1. `worth` is what each criterion is worth by itself, on any
    scale; without it all begin equal. `seed` draws the comparisons where there are too many.
    """
    comparisons = list(pairs) or _order_pairs(labels)
    independent = len({index for pair in comparisons for index in pair}) / 2
    if len(comparisons) > MOST_COMPARISONS:
        comparisons = random.Random(seed).sample(comparisons, MOST_COMPARISONS)
    differences = Counter(
        tuple(better - worse for better, worse in zip(scores[first], scores[second], strict=True))
        for first, second in comparisons
    )
    criteria = len(scores[0]) if scores else 0
    weight = independent / len(comparisons) if comparisons else 0.0
    return _normalise(_minimum([(row, weight * count) for row, count in differences.items()], criteria, worth))


def _order_pairs(labels: Sequence[float]) -> list[tuple[int, int]]:
    """(better, worse) of every two answers whose labels differ."""
    return [
        (first, second) if labels[first] > labels[second] else (second, first)
        for first, second in combinations(range(len(labels)), 2)
        if labels[first] != labels[second]
    ]


def _minimum(
    comparisons: Sequence[tuple[Sequence[float], float]], criteria: int, worth: Sequence[float] | None = None
) -> list[float]:
    """Weights at the only minimum of the objective, given the differences of scores and what each counts.

    One weight after the other moves to where the objective would be smallest if its curvature were everywhere as large
    as it can get (1/4 for the logistic loss), or to 0: no move raises the objective."""
    priors = [PRIOR] * criteria if worth is None else [PRIOR * value / max(worth) for value in worth]
    weights = list(priors)
    margins = [math.fsum(map(operator.mul, weights, row)) for row, _ in comparisons]
    columns = [[(at, row[k], count) for at, (row, count) in enumerate(comparisons) if row[k]] for k in range(criteria)]
    stiffness = 1.0 / SPREAD**2
    for _ in range(SWEEPS):
        moved = 0.0
        for k, column in enumerate(columns):
            slope = stiffness * (weights[k] - priors[k]) - math.fsum(
                count * value / (1.0 + math.exp(margins[at])) for at, value, count in column
            )
            curvature = stiffness + math.fsum(count * value * value for _, value, count in column) / 4
            step = max(-weights[k], -slope / curvature)
            weights[k] += step
            for at, value, _ in column:
                margins[at] += step * value
            moved = max(moved, abs(step))
        if moved < PRECISE:
            break
    return weights


def _normalise(weights: Sequence[float]) -> list[float]:
    total = math.fsum(weights)
    if total < PRECISE:
        return [1.0] * len(weights)
    return [round(weight * len(weights) / total, 3) for weight in weights]
