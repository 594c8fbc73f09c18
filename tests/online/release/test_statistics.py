"""The tests between two versions, against what theory and simulated users say."""

import numpy as np
import pytest

from astune.online.release.statistics import (
    Count,
    UnitTotals,
    check_ratio,
    compare,
    find_dispersion,
    find_spread,
    plan_units,
    weigh_excess,
)
from benchmarks.release_statistics import EFFECT, NOTHING, SOMETHING, Scenario, count, play


@pytest.fixture(scope="module", params=(NOTHING[0], NOTHING[-1]), ids=lambda scenario: scenario.name)
def nothing(request: pytest.FixtureRequest) -> dict[str, float]:
    return count(request.param, 60)[0]


def test_looking_again_and_again_cries_wolf_over_ratings_and_not_over_users(nothing: dict[str, float]) -> None:
    # It is 1 to 4 % of many tests, as the page says; of 60 it is allowed more.
    assert nothing["sequence"] <= 0.1 < nothing["mSPRT"] < nothing["z-test"]


@pytest.mark.parametrize("scenario", (SOMETHING[0], SOMETHING[2]), ids=lambda scenario: scenario.name)
def test_what_is_there_is_found(scenario: Scenario) -> None:
    assert count(scenario, 20)[0]["sequence"] >= 0.75


def test_a_plan_is_kept() -> None:
    """The share of tests that tell the difference, of as many users as were planned, is the power."""
    draw = np.random.default_rng(0)

    def users(n: int, gain: float) -> tuple[np.ndarray, np.ndarray]:
        counts = draw.integers(9, 22, n)
        return draw.binomial(counts, np.clip(draw.normal(0.6 + gain, 0.2, n), 0, 1)), counts

    def seen(n: int, gain: float) -> UnitTotals:
        arm = draw.random(n) < 0.5
        total, counts = users(n, gain * arm)
        return UnitTotals(np.arange(n), np.zeros(n, int), arm, total, counts)

    spread = find_spread(seen(4000, 0.0))
    assert spread is not None
    planned = plan_units(EFFECT, spread, 0.5)
    found = [compare(seen(planned, EFFECT), EFFECT) for _ in range(200)]
    assert 0.7 <= sum(each is not None and each.low > 0 for each in found) / 200 <= 0.9
    assert plan_units(EFFECT, spread, 0.05) > 4 * planned


def test_stages_are_compared_within_themselves() -> None:
    """Two versions that are alike, with more of the challenger's traffic on the better days."""
    draw = np.random.default_rng(1)
    stage = np.repeat([0, 1], 1000)
    arm = draw.random(2000) < np.where(stage, 0.5, 0.05)
    total = draw.binomial(10, np.where(stage, 0.8, 0.4))
    ten = np.full(2000, 10)
    found = compare(UnitTotals(np.arange(2000), stage, arm, total, ten), EFFECT)
    assert found is not None and abs(found.difference) < 0.02 and found.low < 0 < found.high
    mixed = compare(UnitTotals(np.arange(2000), np.zeros(2000, int), arm, total, ten), EFFECT)
    assert mixed is not None and mixed.low > 0.1, "what it is without stages"


def test_ratings_of_one_user_count_as_one_user() -> None:
    few = next(play(Scenario("", taste=0.3), 3))
    *_, many = play(Scenario("", taste=0.3), 3)
    a, b = compare(few, EFFECT), compare(many, EFFECT)
    assert a is not None and b is not None
    assert many.count.sum() > 30 * few.count.sum()
    assert a.high - a.low < 8 * (b.high - b.low), "forty times the ratings are not forty times the users"


def test_a_user_who_changes_the_arm_is_one_cluster() -> None:
    """The same users in both stages tell less than twice as many others."""
    draw = np.random.default_rng(2)
    taste = np.clip(draw.normal(0.5, 0.3, 400), 0, 1)
    arms, ten = np.repeat([False, True], 200), np.full(800, 10.0)
    total = draw.binomial(10, np.tile(taste, 2))
    both, stage = np.tile(arms, 2), np.repeat([0, 1], 400)
    same = compare(UnitTotals(np.tile(np.arange(400), 2), stage, both, total, ten), EFFECT)
    others = compare(UnitTotals(np.arange(800), stage, both, total, ten), EFFECT)
    assert same is not None and others is not None
    assert same.high - same.low > 1.2 * (others.high - others.low)


def test_too_little_is_not_nothing() -> None:
    nobody = UnitTotals(*(np.array([], dtype=kind) for kind in (int, int, bool, float, float)))
    ones = UnitTotals(np.arange(80), np.zeros(80, int), np.arange(80) % 2 == 1, np.ones(80), np.ones(80))
    few = UnitTotals(*(column[:30] for column in vars(ones).values()))
    silent = UnitTotals(ones.unit, ones.stage, ones.challenger, ones.total * 0, ones.count * 0)
    assert [compare(each, EFFECT) for each in (nobody, ones, few, silent)] == [None] * 4
    assert find_spread(few) is not None and find_spread(silent) is None
    apart = compare(UnitTotals(ones.unit, ones.stage, ones.challenger, ones.challenger * 1.0, ones.count), EFFECT)
    assert apart is not None and apart.low > 0, "two arms that agree within themselves do differ"


def test_a_ratio_that_is_wrong_is_an_alarm_and_chance_is_none() -> None:
    draw = np.random.default_rng(4)
    alarms = 0
    for _ in range(300):
        sums = np.cumsum(draw.random(2000) < 0.05)
        alarms += any(
            ratio is not None and ratio.is_alarm
            for n in range(50, 2001, 50)
            if (ratio := check_ratio(n - int(sums[n - 1]), int(sums[n - 1]), 0.05))
        )
    assert alarms <= 3, "at every look together 1 in 1000"
    wrong = check_ratio(4000, 150, 0.05)
    assert wrong is not None and wrong.is_alarm and wrong.p < 0.001
    assert check_ratio(0, 30, 1.0) is None and check_ratio(0, 0, 0.5) is None


def test_the_fast_rule_needs_a_handful_of_errors_and_does_not_cry_wolf() -> None:
    draw = np.random.default_rng(5)
    champion = draw.random(4000) < 0.01
    alarms = 0
    for _ in range(100):
        sums = np.cumsum(draw.random(400) < 0.03)
        of_champion = (Count(int(champion[: 10 * n].sum()), 10 * n) for n in range(1, 401, 10))
        looks = zip(of_champion, range(1, 401, 10), strict=True)
        alarms += any((weigh_excess(each, Count(int(sums[n - 1]), n), 0.02) or 1.0) < 0.01 for each, n in looks)
    assert alarms <= 3
    assert weigh_excess(Count(3, 300), Count(5, 5), 0.02) < 0.001  # type: ignore[operator]
    assert weigh_excess(Count(0, 0), Count(5, 5), 0.02) is None
    assert weigh_excess(Count(9, 10), Count(10, 10), 1.0) == 1.0


def test_a_user_who_repeats_what_fails_is_one_failure() -> None:
    calm = [Count(1, 20), Count(0, 20)] * 20
    repeated = [*[Count(0, 20)] * 38, Count(10, 20), Count(10, 20)]
    assert find_dispersion(calm) == 1.0 and find_dispersion([Count(0, 5)] * 9) == 1.0
    assert find_dispersion(repeated) > 5
    sums = Count(20, 800), Count(14, 40)
    plain, careful = weigh_excess(*sums, 0.02), weigh_excess(*sums, 0.02, find_dispersion(repeated))
    assert plain is not None and careful is not None and plain < 0.05 < careful
