"""Agreement, rankings and calibration: published values, values by hand, and what must hold of all data."""

import math
import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astune.judging.agreement import (
    bootstrap_interval,
    calibration_bins,
    calibration_error,
    cohen_kappa,
    confusion,
    mcnemar,
    quadratic_kappa,
    wilson,
    wilson_by_cluster,
)
from astune.judging.ranking import Concordance, concordance, spearman
from tests.rows import each_row

CLASSES = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("abc")), max_size=30)
NUMBERS = st.lists(st.tuples(st.integers(-3, 3).map(float), st.integers(-3, 3).map(float)), max_size=25)
ANSWERS = st.lists(st.tuples(st.floats(0, 1), st.booleans()), max_size=30)


def columns(pairs: Sequence[tuple]) -> tuple[list, list]:
    return [a for a, _ in pairs], [b for _, b in pairs]


# Newcombe, Statistics in Medicine 17 (1998), table I, method 3
@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_gives_the_intervals_that_newcombe_published(successes: int, n: int, low: float, high: float) -> None:
    assert wilson(successes, n) == (pytest.approx(low, abs=5e-5), pytest.approx(high, abs=5e-5))


@given(st.integers(0, 200).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_holds_the_share_and_is_the_same_seen_from_the_other_side(case: tuple[int, int]) -> None:
    successes, n = case
    low, high = wilson(successes, n)
    assert 0 <= low <= (successes / n if n else 0.5) <= high <= 1
    assert low < high
    other = wilson(n - successes, n)
    assert (1 - other[1], 1 - other[0]) == (pytest.approx(low, abs=1e-12), pytest.approx(high, abs=1e-12))


def test_wilson_refuses_what_is_no_share() -> None:
    with pytest.raises(ValueError, match="3 successes of 2"):
        wilson(3, 2)


def test_answers_that_go_together_make_the_interval_as_wide_as_their_tasks_do() -> None:
    all_or_none = [True] * 40 + [False] * 40
    tasks = [index // 8 for index in range(80)]
    low, high = wilson_by_cluster(all_or_none, tasks)
    assert low < wilson(5, 10)[0] and wilson(5, 10)[1] < high < 0.81
    assert wilson_by_cluster([True] * 80, tasks) == wilson(10, 10)
    assert wilson_by_cluster(all_or_none, range(80)) == wilson(40, 80)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5)), min_size=1, max_size=30))
def test_clusters_never_make_an_interval_narrower(cases: list[tuple[bool, int]]) -> None:
    right, clusters = columns(cases)
    low, high = wilson_by_cluster(right, clusters)
    alone = wilson(sum(right), len(right))
    assert low <= alone[0] + 1e-12 and alone[1] <= high + 1e-12


# Cohen, Educational and Psychological Measurement 20 (1960), the example with 200 cases
COHEN = {("a", "a"): 88, ("a", "b"): 14, ("a", "c"): 18, ("b", "a"): 10, ("b", "b"): 40, ("b", "c"): 10}
COHEN |= {("c", "a"): 2, ("c", "b"): 6, ("c", "c"): 12}


def test_kappa_of_cohens_own_example() -> None:
    labels, said = columns([pair for pair, count in COHEN.items() for _ in range(count)])
    assert cohen_kappa(labels, said) == pytest.approx(0.492, abs=5e-4)


@given(CLASSES, st.randoms(use_true_random=False))
def test_kappa_is_symmetric_at_most_one_and_blind_to_names_and_order(
    pairs: list[tuple[str, str]], rng: random.Random
) -> None:
    kappa = cohen_kappa(*columns(pairs))
    assert cohen_kappa(*reversed(columns(pairs))) == kappa
    renamed = {"a": 3, "b": None, "c": "x"}
    shuffled = rng.sample(pairs, len(pairs))
    assert cohen_kappa([renamed[a] for a, _ in shuffled], [renamed[b] for _, b in shuffled]) == kappa
    if kappa is not None:
        assert -1 <= kappa <= 1
        assert (kappa == 1) == all(a == b for a, b in pairs)


def test_kappa_says_nothing_where_chance_always_agrees() -> None:
    assert cohen_kappa([], []) is None
    assert cohen_kappa([True, True], [True, True]) is None
    assert cohen_kappa([True, False], [True, True]) == 0
    assert cohen_kappa([True, True, False, False], [True, False, False, False]) == 0.5


def weighted_kappa_of_the_table(labels: Sequence[float], said: Sequence[float]) -> float | None:
    """1 - sum(weight * observed) / sum(weight * expected), as Cohen (1968) has it."""
    n = len(labels)
    seen = sum((a - b) ** 2 for a, b in zip(labels, said, strict=True)) * n
    by_chance = sum((a - b) ** 2 for a in labels for b in said)
    return 1 - seen / by_chance if by_chance else None


@given(NUMBERS)
def test_quadratic_kappa_is_that_of_the_weighted_table(pairs: list[tuple[float, float]]) -> None:
    expected = weighted_kappa_of_the_table(*columns(pairs))
    assert quadratic_kappa(*columns(pairs)) == (None if expected is None else pytest.approx(expected, abs=1e-9))


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=30))
def test_of_two_classes_quadratic_kappa_is_cohens(pairs: list[tuple[bool, bool]]) -> None:
    kappa = cohen_kappa(*columns(pairs))
    assert quadratic_kappa(*columns(pairs)) == (None if kappa is None else pytest.approx(kappa, abs=1e-9))


# scipy's documentation of spearmanr
def test_the_rank_correlation_of_known_examples() -> None:
    assert spearman([1, 2, 3, 4, 5], [5, 6, 7, 8, 7]) == pytest.approx(0.8207826816681233)
    assert spearman([1, 2, 3], [0.1, 0.8, 0.8]) == pytest.approx(math.sqrt(0.75))


@given(NUMBERS)
def test_the_rank_correlation_sees_nothing_but_order(pairs: list[tuple[float, float]]) -> None:
    first, second = columns(pairs)
    found = spearman(first, second)
    assert spearman(second, first) == (None if found is None else pytest.approx(found, abs=1e-12))
    assert spearman([math.exp(a) for a in first], second) == found
    assert spearman([-a for a in first], second) == (None if found is None else pytest.approx(-found, abs=1e-12))
    assert (found is None) == (len(set(first)) < 2 or len(set(second)) < 2)
    assert found is None or -1 <= found <= 1


@given(NUMBERS)
def test_concordance_counts_every_pair_with_different_labels(pairs: list[tuple[float, float]]) -> None:
    labels, scores = columns(pairs)
    worth = [  # 1 for a pair in order, 0.5 for a tie in score
        ((scores[i] > scores[j]) + (scores[i] >= scores[j])) / 2
        for i, label in enumerate(labels)
        for j, other in enumerate(labels)
        if label > other
    ]
    found = concordance(labels, scores)
    assert found.pairs == len(worth)
    assert found.accuracy == (pytest.approx(sum(worth) / len(worth)) if worth else None)
    assert concordance(labels, [-score for score in scores]).concordant == found.discordant


def test_ties_count_half() -> None:
    assert concordance([1, 2, 3], [0.1, 0.8, 0.8]) == Concordance(2, 0, 1)
    assert Concordance(2, 0, 1).accuracy == 2.5 / 3 and Concordance(0, 0, 0).accuracy is None


def test_confusion_precision_and_recall() -> None:
    found = confusion([True, True, True, False], [True, False, True, True])
    assert (found.counts[True, True], found.counts[True, False], found.counts[False, True]) == (2, 1, 1)
    assert found.counts[False, False] == 0
    assert (found.precision(True), found.recall(True), found.recall(False)) == (2 / 3, 2 / 3, 0)
    assert (found.agreed, found.n) == (2, 4)
    assert confusion([], [], (True, False)).precision(True) is None


@given(CLASSES)
def test_confusion_counts_all_and_turns_round_with_its_sides(pairs: list[tuple[str, str]]) -> None:
    found, other = confusion(*columns(pairs)), confusion(*reversed(columns(pairs)))
    assert found.n == len(pairs) and found.agreed == sum(a == b for a, b in pairs)
    assert all(found.precision(name) == other.recall(name) for name in found.classes)


def test_mcnemar_by_hand() -> None:
    first, second = [True] * 2 + [False] * 10 + [True] * 5, [False] * 2 + [True] * 10 + [True] * 5
    assert mcnemar(first, second) == mcnemar(second, first) == 2 * (1 + 12 + 66) / 2**12
    assert mcnemar([True, False], [True, False]) == 1
    assert mcnemar([True, False], [False, True]) == 1


def test_the_bootstrap_interval_of_a_mean_is_the_one_of_theory() -> None:
    values = [float(index % 10) for index in range(400)]

    def mean(chosen: Sequence[int]) -> float:
        return math.fsum(values[index] for index in chosen) / len(chosen)

    interval = bootstrap_interval(mean, 400)
    margin = 1.96 * math.sqrt(8.25 / 400)
    assert interval == (pytest.approx(4.5 - margin, abs=0.06), pytest.approx(4.5 + margin, abs=0.06))
    assert bootstrap_interval(mean, 400) == interval != bootstrap_interval(mean, 400, seed=1)
    by_digit = bootstrap_interval(mean, 400, clusters=[int(value) for value in values])
    assert by_digit is not None and by_digit[1] - by_digit[0] > 4 * (interval[1] - interval[0])


def test_no_bootstrap_interval_where_the_examples_do_not_show_how_much_a_figure_varies() -> None:
    assert bootstrap_interval(lambda chosen: 1.0, 5) is None
    assert bootstrap_interval(lambda chosen: None, 5) is None
    assert bootstrap_interval(lambda chosen: float(len(chosen)), 0) is None
    with pytest.raises(ValueError, match="3 examples, but 2 clusters"):
        bootstrap_interval(lambda chosen: 1.0, 3, clusters=[1, 2])


def test_calibration_by_hand() -> None:
    bins = calibration_bins([0.9, 0.8, 1.0, 0.1, 0.5], [True, False, True, False, True], count=2)
    assert [(bin.low, bin.high, bin.n, bin.right) for bin in bins] == [(0.0, 0.5, 1, 0), (0.5, 1.0, 4, 3)]
    assert bins[1].mean_reward == pytest.approx(0.8) and bins[1].interval == wilson(3, 4)
    assert calibration_error(bins) == pytest.approx((1 * 0.1 + 4 * 0.05) / 5)
    assert calibration_error([]) is None
    with pytest.raises(ValueError, match=r"reward 1\.5 is not from 0 to 1"):
        calibration_bins([1.5], [True])


@given(ANSWERS)
def test_every_answer_is_in_one_bin_around_its_reward(answers: list[tuple[float, bool]]) -> None:
    rewards, right = columns(answers)
    bins = calibration_bins(rewards, right)
    assert sum(bin.n for bin in bins) == len(answers) and sum(bin.right for bin in bins) == sum(right)
    assert all(bin.low - 1e-9 <= bin.mean_reward <= bin.high + 1e-9 for bin in bins)
    error = calibration_error(bins)
    assert error is None or 0 <= error <= 1


def test_rewards_that_mean_what_they_say_have_no_calibration_error() -> None:
    rewards = [0.25] * 40 + [0.75] * 40
    right = [index % 4 == 0 for index in range(40)] + [index % 4 != 0 for index in range(40)]
    assert calibration_error(calibration_bins(rewards, right)) == 0
    assert calibration_error(calibration_bins(rewards, [not is_right for is_right in right])) == 0.5


@each_row("figure", [cohen_kappa, quadratic_kappa, concordance, spearman, mcnemar])
def test_lists_of_different_lengths_are_an_error(figure: Callable[[list, list], object]) -> None:
    with pytest.raises(ValueError, match="2 and 1 values"):
        figure([1, 2], [1])
