"""The pipeline as a whole in the planted world: it finds what made the labels, and nothing where nothing did."""

from statistics import mean
from typing import Any

import pytest

from astune.judging.agreement import wilson
from astune.testing import Faults, PlantedWorld
from benchmarks.rubrics import run


@pytest.mark.slow
def test_over_20_seeds_it_finds_the_planted_criteria_and_beats_the_judge_without_them() -> None:
    outcomes = [run(PlantedWorld(seed, 60), seed) for seed in range(20)]
    assert mean(one.recall for one in outcomes) >= 0.9
    better = [one.learned.test.accuracy - one.learned.without_rubric.accuracy for one in outcomes]
    assert mean(better) > 0.1
    assert sum(gain > 0 for gain in better) >= 15
    assert mean(one.learned.test.accuracy for one in outcomes) > mean(one.limit for one in outcomes) - 0.1


@pytest.mark.slow
def test_with_shuffled_labels_it_is_no_better_than_chance() -> None:
    outcomes = [run(PlantedWorld(seed, 60, shuffled_labels=True), seed) for seed in range(20)]
    tests = [one.learned.test for one in outcomes if one.learned]
    n = sum(test.n for test in tests)
    low, high = wilson(sum(test.accuracy * test.n for test in tests), n)
    assert low <= 0.5 <= high
    assert n > 150


@pytest.mark.parametrize("kind", ["paired", "ranked"])
def test_it_learns_from_pairs_and_ranks(kind: Any) -> None:
    outcomes = [run(PlantedWorld(seed, 40, kind, noise=0.0, judge_noise=0.0), seed) for seed in range(3)]
    assert mean(one.recall for one in outcomes) >= 0.75
    assert mean(one.learned.test.accuracy for one in outcomes) > 0.8


def test_http_its_order_of_replies_and_its_faults_change_nothing() -> None:
    """Calls that fail and replies that break off are asked for again."""
    faulty = PlantedWorld(0, 20, faults=Faults(failing=0.02, malformed=0.02, missing=0.02, repeated=0.02))
    here, over_http = run(PlantedWorld(0, 20), 0), run(PlantedWorld(0, 20), 0, http=True)
    assert here.learned == over_http.learned
    assert here.replies == over_http.replies
    learned = run(faulty, 0, http=True).learned
    assert learned is not None and learned.test.could_not_judge <= 1
