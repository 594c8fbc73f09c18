"""Weights follow the data as far as the data go, and equal weights where they do not."""

import math
import random
from statistics import mean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astune.rubrics import weights as module
from astune.rubrics.weights import PRIOR, SPREAD, fit_weights

Scores = list[list[float]]


def pairs_by(truth: list[float], count: int, seed: int, wrong: float = 0.1) -> tuple[Scores, list[tuple[int, int]]]:
    """Answers with random scores, paired; the one with the larger sum of `truth` is the better but for errors."""
    rng = random.Random(seed)
    scores = [[float(rng.random() < 0.5) for _ in truth] for _ in range(2 * count)]
    pairs = []
    for first in range(0, 2 * count, 2):
        sums = [sum(w * x for w, x in zip(truth, scores[i], strict=True)) for i in (first, first + 1)]
        if sums[0] != sums[1]:
            right = (first, first + 1) if sums[0] > sums[1] else (first + 1, first)
            pairs.append(right[::-1] if rng.random() < wrong else right)
    return scores, pairs


def objective(weights: list[float], scores: Scores, pairs: list[tuple[int, int]]) -> float:
    """As the module's docstring writes it."""
    losses = [
        math.log1p(math.exp(-sum(w * (b - c) for w, b, c in zip(weights, scores[i], scores[j], strict=True))))
        for i, j in pairs
    ]
    independent = len({index for pair in pairs for index in pair}) / 2
    return independent * mean(losses) + sum((w - PRIOR) ** 2 for w in weights) / (2 * SPREAD**2)


def test_planted_weights_come_back_in_their_order() -> None:
    for seed in range(5):
        first, second, third, noise = fit_weights(*as_pairs(pairs_by([4.0, 2.0, 1.0, 0.0], 400, seed)), seed=0)
        assert first > second > third > noise
        assert noise < 0.25


def as_pairs(data: tuple[Scores, list[tuple[int, int]]]) -> tuple[Scores, list[float], list[tuple[int, int]]]:
    return data[0], [], data[1]


def test_without_examples_all_weights_are_one() -> None:
    assert fit_weights([[0.0, 1.0], [1.0, 0.0]], [], [], seed=0) == [1.0, 1.0]
    assert fit_weights([[0.0, 1.0], [1.0, 0.0]], [0.5, 0.5], [], seed=0) == [1.0, 1.0]
    assert fit_weights([], [], [], seed=0) == []


def test_where_every_criterion_has_the_wrong_sign_all_weights_are_one() -> None:
    scores, pairs = pairs_by([1.0, 1.0], 300, 0)
    assert fit_weights(scores, [], [(worse, better) for better, worse in pairs], seed=0) == [1.0, 1.0]


def test_labels_make_the_comparisons_that_their_order_says() -> None:
    scores = [[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]
    implied = [(1, 0), (2, 0), (2, 1)]
    assert fit_weights(scores, [1.0, 3.0, 5.0], [], seed=0) == fit_weights(scores, [], implied, seed=0)
    assert fit_weights(scores, [False, True, True], [], seed=0) == fit_weights(scores, [], implied[:2], seed=0)


def test_comparisons_of_the_same_answers_are_not_taken_for_more_answers() -> None:
    scores, pairs = pairs_by([2.0, 1.0, 0.0], 10, 0)
    assert fit_weights(scores, [], pairs * 5, seed=0) == fit_weights(scores, [], pairs, seed=0)
    more = fit_weights([*scores, *scores], [], [*pairs, *((a + 20, b + 20) for a, b in pairs)], seed=0)
    assert more != fit_weights(scores, [], pairs, seed=0)


def test_weights_are_where_the_objective_is_smallest() -> None:
    scores, pairs = pairs_by([2.0, 1.0, 0.0, -1.0], 150, 1)
    weights = module._minimum(
        [([a - b for a, b in zip(scores[i], scores[j], strict=True)], share(pairs)) for i, j in pairs], 4
    )
    best = objective(weights, scores, pairs)
    rng = random.Random(0)
    for _ in range(300):
        near = [max(0.0, weight + rng.gauss(0.0, 10.0 ** -rng.randint(1, 4))) for weight in weights]
        assert objective(near, scores, pairs) >= best - 1e-9
    assert weights[3] == 0.0


def share(pairs: list[tuple[int, int]]) -> float:
    return len({index for pair in pairs for index in pair}) / 2 / len(pairs)


@given(
    st.integers(1, 5).flatmap(
        lambda width: st.lists(st.lists(st.sampled_from([0.0, 0.25, 1.0]), min_size=width, max_size=width), min_size=2)
    ),
    st.randoms(use_true_random=False),
)
@settings(deadline=None, max_examples=50)
def test_weights_are_never_negative_and_have_mean_one(scores: Scores, rng: random.Random) -> None:
    labels = [rng.choice([0.0, 0.5, 1.0]) for _ in scores]
    weights = fit_weights(scores, labels, [], seed=0)
    assert min(weights) >= 0.0 and max(weights) > 0.0
    assert mean(weights) == pytest.approx(1.0, abs=0.001)
    assert weights == fit_weights(scores, labels, [], seed=0) == [round(weight, 3) for weight in weights]


@given(st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=20)
def test_weights_do_not_depend_on_the_order_of_the_answers(rng: random.Random) -> None:
    scores, _ = pairs_by([2.0, 1.0, 0.5], 20, rng.randrange(1000))
    labels = [row[0] + row[1] for row in scores]
    order = rng.sample(range(len(scores)), len(scores))
    shuffled = fit_weights([scores[i] for i in order], [labels[i] for i in order], [], seed=0)
    assert shuffled == pytest.approx(fit_weights(scores, labels, [], seed=0), abs=0.0011)


def test_of_very_many_comparisons_some_are_drawn_by_the_seed() -> None:
    scores, _ = pairs_by([2.0, 1.0, 0.5], 60, 0)
    rng = random.Random(0)
    labels = [row[0] + 0.3 * row[1] + rng.random() for row in scores]  # 7,140 comparisons
    drawn = {seed: fit_weights(scores, labels, [], seed=seed) for seed in (0, 1)}
    assert drawn[0] != drawn[1]
    assert drawn[0] == pytest.approx(drawn[1], abs=0.1)
    assert drawn[0] == fit_weights(scores, labels, [], seed=0)


def test_what_a_criterion_is_worth_is_where_its_weight_begins() -> None:
    assert fit_weights([[1, 1]], [1], [], seed=0, worth=[1.0, 0.25]) == [1.6, 0.4]
    scores, pairs = pairs_by([1.0, 1.0], 8, 0)
    first, second = fit_weights(scores, [], pairs, seed=0, worth=[1.0, 0.1])
    assert second < 0.3 * first
