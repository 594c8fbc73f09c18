"""Choose a rubric from candidates, and the weight of each criterion.

Three things decide, and none of them sees the test examples:

    dev               a criterion that the better answers of dev do not meet more than the worse is not taken
    train and dev     of the others, each is worth what it takes off the loss mean log(1 + exp(-margin)) of all
                      comparisons, where the margin is what the criteria chosen so far and it give the better answer
                      more than the worse (forward selection)
    coding rate       of those, a small set is selected whose members differ from each other (`coding_rate.py`)

Weights are fitted on train and dev, from what each criterion helps there (`weights.py`). A handful of dev examples
alone would take criteria by luck: that found 0.74 of the criteria of a planted world, and this 0.94 (60 scored
examples, 15 of them dev, 20 seeds).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from astune.rubrics.coding_rate import select_criteria
from astune.rubrics.examples import Kind
from astune.rubrics.judge_examples import Scores
from astune.rubrics.measure import Accuracy, Key, comparisons, keys, measure, pass_mark
from astune.rubrics.similarity import duplicate_groups
from astune.rubrics.split import Split
from astune.rubrics.weights import fit_weights
from astune.task_judge.llm.rubric import Criterion

SMALLEST_WEIGHT = 0.05
"""Criteria of less than this, where the mean is 1, are left out."""


HARDLY = 0.3
"""A share of what half of the best criterion helps: one that helps less weighs no more beside it than that."""

ROUNDING = 1e-9
"""Nats that a criterion takes off the loss at least."""


@dataclass(frozen=True)
class Choice:
    """Criteria with their weights. `helps` are the `dev_helps` of all candidates."""

    criteria: tuple[Criterion, ...]
    dev: Accuracy
    helps: Mapping[str, float]


def choose(
    pool: Sequence[Criterion],
    kept: Collection[str],
    scores: Scores,
    split: Split,
    kind: Kind,
    at_most: int,
    seed: int,
) -> Choice | None:
    """The best rubric of criteria of `pool`; those whose ids are in `kept` are in it as they are. None if there are
    none of these, and no other helps."""
    ordered = [*comparisons(split.train, kind), *comparisons(split.dev, kind)]
    margins = {one.id: _margins(one, ordered, scores) for one in pool}
    helps = dev_helps(pool, scores, split, kind)
    given = [one for one in pool if one.id in kept]
    telling = [one for one in pool if one.id not in kept and helps[one.id] > 0]
    candidates = _without_duplicates(given, telling, margins, scores, split)
    gains = _forward([margins[one.id] for one in given], {one.id: margins[one.id] for one in candidates}, len(ordered))
    helpful = [one for one in candidates if one.id in gains]
    indices = select_criteria(
        [one.text for one in helpful], [gains[one.id] for one in helpful], max(0, at_most - len(given)), seed
    )
    chosen = _weigh(given, [helpful[index] for index in indices], scores, split, kind, seed)
    if not any(one.weight for one in chosen):
        return None
    rewards = scores.rewards(chosen, [key for one in (*split.train, *split.dev) for key in keys(one)])
    mark = pass_mark(split.train, kind, rewards)
    return Choice(tuple(chosen), measure(split.dev, kind, rewards, mark), helps)


def dev_helps(pool: Sequence[Criterion], scores: Scores, split: Split, kind: Kind) -> dict[str, float]:
    """By id, how much more the better answers of dev meet a criterion than the worse: from -1 to 1."""
    ordered = comparisons(split.dev, kind)
    return {one.id: _help(_margins(one, ordered, scores)) for one in pool}


def _help(margins: Sequence[float]) -> float:
    """The mean margin of a criterion: from -1 to 1."""
    return math.fsum(margins) / len(margins)


def _margins(criterion: Criterion, ordered: Sequence[tuple[Key, Key]], scores: Scores) -> list[float]:
    """By comparison, the share of the better answer less that of the worse; 0 where one could not be judged."""
    of = {key: scores.of(criterion, key) for key in dict.fromkeys(chain.from_iterable(ordered))}
    shares = [(of[better], of[worse]) for better, worse in ordered]
    return [0.0 if better is None or worse is None else better - worse for better, worse in shares]


def _loss(margins: Sequence[float]) -> float:
    return math.fsum(math.log1p(math.exp(-margin)) for margin in margins) / len(margins)


def _without_duplicates(
    given: Sequence[Criterion],
    others: Sequence[Criterion],
    margins: Mapping[str, Sequence[float]],
    scores: Scores,
    split: Split,
) -> list[Criterion]:
    """Keep of the `others` that say or do the same the one that tells most, and none that repeats a given criterion."""
    judged = [key for one in (*split.train, *split.dev) for key in keys(one)]
    together = [*given, *sorted(others, key=lambda one: -math.fsum(margins[one.id]))]
    groups = duplicate_groups([one.text for one in together], [scores.column(one, judged) for one in together])
    return [together[group[0]] for group in groups if group[0] >= len(given)]


def _forward(
    given: Sequence[Sequence[float]], candidates: Mapping[str, Sequence[float]], comparisons: int
) -> dict[str, float]:
    """Forward selection: for each candidate that helps, in turn, what it took off the loss beside those before it."""
    totals = [0.0] * comparisons
    for margins in given:
        totals = [a + b for a, b in zip(totals, margins, strict=True)]
    gains: dict[str, float] = {}
    while len(gains) < len(candidates):
        sums = {
            name: [a + b for a, b in zip(totals, margins, strict=True)]
            for name, margins in candidates.items()
            if name not in gains
        }
        losses = {name: _loss(margins) for name, margins in sums.items()}
        best = min(losses, key=losses.__getitem__)
        gain = _loss(totals) - losses[best]
        if gain <= ROUNDING:
            break
        gains[best], totals = gain, sums[best]
    return gains


def _weigh(
    given: Sequence[Criterion], chosen: Sequence[Criterion], scores: Scores, split: Split, kind: Kind, seed: int
) -> list[Criterion]:
    """Weigh criteria: `given` keep their weights, the others get fitted ones on the same measure; the heaviest
    first."""
    together = [*given, *chosen]
    if not chosen:
        return together
    worth = _worth(together, scores, split, kind)
    fitted = _fit(together, worth, scores, split, kind, seed)
    fitted = [
        weight if value > HARDLY else min(weight, value * max(fitted))
        for weight, value in zip(fitted, worth, strict=True)
    ]
    of_given, theirs = sum(one.weight for one in given), sum(fitted[: len(given)])
    unit = of_given / theirs if of_given and theirs else 1.0
    weighted = [
        one.model_copy(update={"weight": round(weight * unit, 2)})
        for one, weight in zip(chosen, fitted[len(given) :], strict=True)
        if weight >= SMALLEST_WEIGHT
    ]
    return [*given, *sorted(weighted, key=lambda one: -one.weight)]


def _worth(criteria: Sequence[Criterion], scores: Scores, split: Split, kind: Kind) -> list[float]:
    """The prior of each weight, and the most that it may be beside the largest: 1 for criteria that help at least half
    as much as the best one, since so few examples cannot tell these apart, and less for those that help less."""
    ordered = [*comparisons(split.train, kind), *comparisons(split.dev, kind)]
    on_dev = dev_helps(criteria, scores, split, kind)
    helps = [min(on_dev[one.id], _help(_margins(one, ordered, scores))) for one in criteria]
    best = max(helps)
    return [min(1.0, 2 * max(0.0, one) / best) if best > 0 else 1.0 for one in helps]


def _fit(
    criteria: Sequence[Criterion], worth: Sequence[float], scores: Scores, split: Split, kind: Kind, seed: int
) -> list[float]:
    """Fit weights on the answers of train and dev that could be judged by all of `criteria`."""
    rows: list[list[float]] = []
    labels: list[float] = []
    places: dict[Key, int] = {}
    for one in (*split.train, *split.dev):
        for key in keys(one):
            row = [scores.of(criterion, key) for criterion in criteria]
            known = [share for share in row if share is not None]
            if len(known) == len(row):
                places[key] = len(rows)
                rows.append(known)
                labels.append(float(one.good))
    ordered = [*comparisons(split.train, kind), *comparisons(split.dev, kind)]
    if kind == "scored":
        return fit_weights(rows, labels, [], seed, worth)
    pairs = [(places[better], places[worse]) for better, worse in ordered if better in places and worse in places]
    return fit_weights(rows, [], pairs, seed, worth)
