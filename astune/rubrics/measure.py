"""Accuracy of rewards: how often they agree with people, on some of the examples.

    scored   the reward is at least the pass mark exactly where people found the answer good
    paired   the better answer has the higher reward; a tie counts half
    ranked   the share of its pairs of answers of which that holds

An answer that could not be judged has no reward. Whatever it takes part in counts as wrong.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from astune.judging.agreement import cohen_kappa, wilson
from astune.rubrics.examples import Kind, RubricExample
from astune.support.statistics import exceeds

Key = tuple[str, int]
"""An answer: the id of its example and its number there."""
Rewards = Mapping[Key, float | None]
"""From 0 to 1, None where the judge could not tell."""


@dataclass(frozen=True)
class Accuracy:
    """`accuracy` is the mean over `n` examples. `low` and `high` are its 95 % interval by Wilson, each question counted
    once, since answers to one question go together. `kappa` is Cohen's, None where it is not defined; of pairs and
    ranks it is that of either order, so that chance is one half. `could_not_judge` counts answers."""

    n: int
    accuracy: float
    low: float
    high: float
    kappa: float | None
    could_not_judge: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Rounded, as a rubric's report has it."""
        return {
            "n": self.n,
            "accuracy": round(self.accuracy, 4),
            "low": round(self.low, 4),
            "high": round(self.high, 4),
            "kappa": None if self.kappa is None else round(self.kappa, 4),
            "could_not_judge": self.could_not_judge,
        }


def measure(examples: Sequence[RubricExample], kind: Kind, rewards: Rewards, pass_at: float) -> Accuracy:
    """The accuracy of `rewards` on `examples`; scored answers pass from `pass_at` on."""
    right = [how_right(example, kind, rewards, pass_at) for example in examples]
    labels: list[Hashable] = []
    given: list[Hashable] = []
    for example in examples:
        for label, said in _classes(example, kind, rewards, pass_at):
            labels.append(label)
            given.append(said)
    questions = len({example.query for example in examples})
    accuracy = sum(right) / len(right)
    low, high = wilson(accuracy * questions, questions)
    failed = sum(rewards[key] is None for example in examples for key in keys(example))
    return Accuracy(len(examples), accuracy, low, high, cohen_kappa(labels, given), failed)


def keys(example: RubricExample) -> list[Key]:
    return [(example.id, number) for number in range(len(example.answers))]


def how_right(example: RubricExample, kind: Kind, rewards: Rewards, pass_at: float) -> float:
    """Share of the example that the rewards get right, from 0 to 1."""
    if kind == "scored":
        reward = rewards[example.id, 0]
        return float(reward is not None and (reward >= pass_at) == example.good)
    ordered = [
        _compare_rewards(rewards[example.id, better], rewards[example.id, worse]) for better, worse in example.orders
    ]
    return sum({1: 1.0, 0: 0.5}.get(order, 0.0) if order is not None else 0.0 for order in ordered) / len(ordered)


def comparisons(examples: Sequence[RubricExample], kind: Kind) -> list[tuple[Key, Key]]:
    """(better, worse) of all answers that people told apart: good from bad ones where they are scored, else within an
    example."""
    if kind == "scored":
        good = [(example.id, 0) for example in examples if example.good]
        bad = [(example.id, 0) for example in examples if not example.good]
        return [(better, worse) for better in good for worse in bad]
    return [((one.id, better), (one.id, worse)) for one in examples for better, worse in one.orders]


def pass_mark(examples: Sequence[RubricExample], kind: Kind, rewards: Rewards) -> float:
    """The reward from which an answer passes that tells good from bad most often among `examples`; of several, the
    one nearest to 0.5. Good are answers of the upper half of the scores, and the best of those compared; bad the lower
    half, and the worst. It is above 0 and at most 1, with three digits, as `astune.task_judge.rubrics.pass_at` is.
    """
    judged = [(reward, good) for reward, good in _good_and_bad(examples, kind, rewards) if reward is not None]
    levels = sorted({0.0, 1.0, *(reward for reward, _ in judged)})
    middles = [(low + high) / 2 for low, high in pairwise(levels)]
    marks = [0.5, *(round(middle, 3) for middle in middles), 1.0]

    def count_agreed(mark: float) -> int:
        return sum((reward >= mark) == good for reward, good in judged)

    return max((mark for mark in marks if mark > 0), key=lambda mark: (count_agreed(mark), -abs(mark - 0.5)))


def _good_and_bad(examples: Sequence[RubricExample], kind: Kind, rewards: Rewards) -> list[tuple[float | None, bool]]:
    if kind == "scored":
        return [(rewards[one.id, 0], one.good) for one in examples]
    ends = [((one.id, 0), (one.id, len(one.answers) - 1)) for one in examples]
    return [(rewards[key], good) for best, worst in ends for key, good in ((best, True), (worst, False))]


def _compare_rewards(one: float | None, other: float | None) -> int | None:
    """1 if the first reward is higher, -1 if the second is, 0 for a tie, None if either is missing."""
    if one is None or other is None:
        return None
    return exceeds(one, other) - exceeds(other, one)


def _classes(
    example: RubricExample, kind: Kind, rewards: Rewards, pass_at: float
) -> list[tuple[bool | int, bool | int | None]]:
    """Pairs of what people say and what the rewards say, for Cohen's kappa; each order both ways round."""
    if kind == "scored":
        reward = rewards[example.id, 0]
        return [(example.good, None if reward is None else reward >= pass_at)]
    classes: list[tuple[bool | int, bool | int | None]] = []
    for better, worse in example.orders:
        order = _compare_rewards(rewards[example.id, better], rewards[example.id, worse])
        classes += [(1, order), (-1, None if order is None else -order)]
    return classes
