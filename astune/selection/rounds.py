"""Stop models that cannot win, in rounds of which each has twice as many tasks as the one before.

After each round but the last a model is left out if a paired test finds it worse than the one in front. What is worse
has a one-sided p below `error` / (rounds with a test x other models): as the best model is not worse than any other,
the chance that any of those tests leaves it out is at most `error`, whichever is in front and however many there are.
Of single attempts the test is exact (McNemar's). Of means over several, and where a rule allows models that are worse
by some points, it is a permutation test, which supposes that differences are as likely to either side of that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from astune.selection.figures import Values
from astune.support.statistics import permutation_test

FEWEST = 8
"""Tasks of the first round: fewer prove nothing at any useful error."""
ROUNDS = 4


@dataclass(frozen=True)
class Outpaced:
    """A model that was left out after so many tasks, being worse than the leader by one-sided `p`."""

    name: str
    tasks: int
    value: float
    leader: str
    leading: float
    p: float


def sizes_of_rounds(tasks: int) -> list[int]:
    """The number of tasks that have been played after each round.

    >>> sizes_of_rounds(200), sizes_of_rounds(20), sizes_of_rounds(6)
    ([25, 50, 100, 200], [10, 20], [6])
    """
    sizes = [tasks]
    while len(sizes) < ROUNDS and (half := -(-sizes[0] // 2)) >= FEWEST:
        sizes.insert(0, half)
    return sizes


def shuffle_tasks(tasks: Sequence[str], seed: int) -> list[str]:
    """The tasks in an order that depends on nothing but the seed and their ids: the first ones stand for all."""
    return sorted(tasks, key=lambda task: (hashlib.sha256(f"{seed}/{task}".encode()).digest(), task))


def find_worse(values: Mapping[str, Values], models: int, tests: int, error: float, within: float) -> list[Outpaced]:
    """Find the models that are worse than the one in front by more than `within`. `values` are those of the models
    still there, of `models` that began; `tests` are the rounds with a test."""
    means = {name: sum(each.values()) / len(each) for name, each in values.items() if each}
    if len(means) < 2:
        return []
    leader = max(means, key=means.__getitem__)
    found = []
    for name in [name for name in means if name != leader]:
        both = [task for task in values[leader] if task in values[name]]
        behind = [values[leader][task] - values[name][task] - within for task in both]
        p = permutation_test(behind).p / 2 if behind and sum(behind) > 0 else 1.0
        if p < error / (tests * (models - 1)):
            found.append(Outpaced(name, len(both), means[name], leader, means[leader], p))
    return found
