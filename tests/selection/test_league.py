"""Ratings of versions that played against each other. `tests/backbone/local/test_models` plays a league."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astune.selection.league import rate

STRENGTHS = {"wolf 0": -200.0, "wolf 1": 100.0, "dog 0": 0.0, "dog 1": 300.0}


def play(tasks: int, draw: random.Random) -> dict[tuple[str, str], dict[str, float]]:
    """Who wins by what the players are worth."""
    pairs = [(one, other) for one in STRENGTHS for other in STRENGTHS if one[0] == "w" and other[0] == "d"]
    chance = {pair: 1 / (1 + 10 ** ((STRENGTHS[pair[1]] - STRENGTHS[pair[0]]) / 400)) for pair in pairs}
    return {pair: {str(task): float(draw.random() < chance[pair]) for task in range(tasks)} for pair in pairs}


def test_ratings_are_near_what_players_are_worth_and_their_intervals_hold_it() -> None:
    found = {each.player: each for each in rate(play(400, random.Random(1)))}
    middle = sum(STRENGTHS.values()) / 4 - sum(each.rating for each in found.values()) / 4
    for player, worth in STRENGTHS.items():
        low, high = found[player].interval
        assert found[player].rating + middle == pytest.approx(worth, abs=60)
        assert low - 20 < worth - middle < high + 20 and high - low < 150
    assert [each.player for each in rate(play(400, random.Random(2)))] == ["dog 1", "wolf 1", "dog 0", "wolf 0"]


@settings(max_examples=20)
@given(st.integers(1, 5), st.integers(0, 10**6))
def test_whoever_wins_all_or_nothing_has_a_finite_rating_and_who_wins_more_a_higher_one(tasks: int, seed: int) -> None:
    shares = play(tasks, random.Random(seed))
    won = dict.fromkeys(STRENGTHS, 0.0)
    for (one, other), each in shares.items():
        won[one] += sum(each.values())
        won[other] += tasks - sum(each.values())
    found = {each.player: each.rating for each in rate(shares)}
    assert all(abs(rating) < 2000 for rating in found.values())
    for side in "wd":
        first, second = (player for player in STRENGTHS if player[0] == side)
        if won[first] != won[second]:
            assert (found[first] > found[second]) == (won[first] > won[second])
