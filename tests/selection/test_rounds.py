"""How often the best model is left out before the end: at most as often as was said."""

from __future__ import annotations

import random

import pytest

from astune.selection.rounds import find_worse, sizes_of_rounds

TIMES, TASKS, ERROR = 400, 64, 0.2
"""A large error, so that few repetitions show one that is exceeded: 80 of 400 would be allowed."""


def is_best_left_out(chances: list[float], draw: random.Random, attempts: int, within: float) -> tuple[bool, int]:
    """Play models that solve tasks with these chances, the first of which is the best, at tasks that are hard or easy
    for all. Returns whether the best was left out, and how many others were."""
    ease = [draw.uniform(-0.2, 0.2) for _ in range(TASKS)]
    values = {
        str(n): {
            str(t): sum(draw.random() < min(1.0, max(0.0, chance + ease[t])) for _ in range(attempts)) / attempts
            for t in range(TASKS)
        }
        for n, chance in enumerate(chances)
    }
    sizes, there = sizes_of_rounds(TASKS), set(values)
    for size in sizes[:-1]:
        seen = {name: {str(t): values[name][str(t)] for t in range(size)} for name in values if name in there}
        there -= {worse.name for worse in find_worse(seen, len(chances), len(sizes) - 1, ERROR, within)}
    return "0" not in there, len(values) - len(there)


@pytest.mark.parametrize(("attempts", "within"), [(1, 0.0), (3, 0.0), (1, 0.03)])
def test_the_best_is_left_out_no_more_often_than_was_said(attempts: int, within: float) -> None:
    """The hardest case is that of equal models."""
    draw = random.Random(7)
    lost = sum(is_best_left_out([0.5] * 4, draw, attempts, within)[0] for _ in range(TIMES))
    assert lost <= ERROR * TIMES


def test_models_that_are_much_worse_are_left_out() -> None:
    draw = random.Random(7)
    found = [is_best_left_out([0.8, 0.2, 0.2], draw, 1, 0.0) for _ in range(50)]
    assert not any(lost for lost, _ in found) and sum(others for _, others in found) >= 90
