"""Split examples into those that a rubric is learned from, chosen by, and tested on.

The same seed and examples give the same split. Examples with the same question stay together: answers to a question
that was learned from say little of questions to come.
"""

from __future__ import annotations

import hashlib
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from astune.errors import TaskError
from astune.rubrics.examples import Examples, Kind, RubricExample

ATTEMPTS = 500
"""Shuffles that are tried for one with good and bad answers where both are needed."""
SHARE = 0.25
"""The part of the examples that is in dev, and the part that is in test."""


@dataclass(frozen=True)
class Split:
    """`train` proposes and revises criteria, `dev` selects them, `test` is judged once, at the end."""

    train: tuple[RubricExample, ...]
    dev: tuple[RubricExample, ...]
    test: tuple[RubricExample, ...]

    @property
    def digest(self) -> str:
        """16 hexadecimal digits that say which example stands where."""
        ids = repr([sorted(example.id for example in part) for part in (self.train, self.dev, self.test)])
        return hashlib.sha256(ids.encode()).hexdigest()[:16]


def split_examples(examples: Examples, seed: int) -> Split:
    """At least one example in each part, and of scored ones good and bad answers in train and in dev.

    Raises TaskError where no split is like that.
    """
    groups: dict[str, list[RubricExample]] = defaultdict(list)
    for example in examples.all:
        groups[" ".join(example.query.casefold().split())].append(example)
    if len(groups) < 3:
        raise TaskError(
            f"{examples.path}: {len(groups)} different questions, expected at least 3: one to learn from, one to "
            "choose criteria by, one to test on"
        )
    n, shuffled = len(examples.all), random.Random(seed)
    sizes = max(1, round(SHARE * n)), max(2 if examples.kind == "scored" else 1, round(SHARE * n))
    for _ in range(ATTEMPTS):
        split = _attempt(list(groups.values()), sizes, shuffled)
        if _complete(split, examples.kind):
            return split
    raise TaskError(
        f"{examples.path}: the examples cannot be split into parts to learn from, to choose by and to test on with "
        "good and bad answers in the first two; expected at least 2 good and 2 bad answers, to different questions"
    )


def _attempt(groups: list[list[RubricExample]], sizes: tuple[int, int], shuffled: random.Random) -> Split:
    """Groups in an order in which good and bad ones are spread evenly, dealt to test, then dev, then train."""
    shuffled.shuffle(groups)
    spread = [group for _, group in sorted(_evenly(groups), key=lambda placed: placed[0])]
    test, dev = (_take(spread, size) for size in sizes)
    return Split(_in_order(spread), _in_order(dev), _in_order(test))


def _evenly(groups: Sequence[list[RubricExample]]) -> list[tuple[tuple[float, int], list[RubricExample]]]:
    strata: dict[float, list[list[RubricExample]]] = defaultdict(list)
    for group in groups:
        strata[round(sum(one.values[0] >= 0.5 for one in group) / len(group))].append(group)
    return [  # the share of its stratum that a group stands behind: sorted by that, strata mix evenly
        (((place + 0.5) / len(stratum), number), group)
        for number, (_, stratum) in enumerate(sorted(strata.items()))
        for place, group in enumerate(stratum)
    ]


def _take(groups: list[list[RubricExample]], size: int) -> list[list[RubricExample]]:
    """The first groups, taken off the list, until there are `size` examples."""
    taken: list[list[RubricExample]] = []
    while groups and sum(map(len, taken)) < size:
        taken.append(groups.pop(0))
    return taken


def _in_order(groups: list[list[RubricExample]]) -> tuple[RubricExample, ...]:
    return tuple(sorted((one for group in groups for one in group), key=lambda one: one.id))


def _complete(split: Split, kind: Kind) -> bool:
    if not (split.train and split.dev and split.test):
        return False
    return kind != "scored" or all({one.good for one in part} == {True, False} for part in (split.train, split.dev))
