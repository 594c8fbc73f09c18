"""Agreement with people, and what a judge that fails does to it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astune.judging.agreement import wilson
from astune.rubrics.examples import RubricExample
from astune.rubrics.measure import comparisons, measure, pass_mark


def scored(*goods):
    return [RubricExample(f"e{n}", f"q{n}", ("a",), (float(good),)) for n, good in enumerate(goods)]


def rewards(*values):
    return {(f"e{n}", 0): value for n, value in enumerate(values)}


PAIRS = [RubricExample(f"e{n}", f"q{n}", ("better", "worse"), (1.0, 0.0)) for n in range(3)]
RANKED = [RubricExample("e0", "q", ("best", "middle", "worst"), (-1.0, -2.0, -3.0))]


def test_a_scored_answer_is_right_on_the_side_of_the_pass_mark_where_people_see_it():
    found = measure(scored(1, 1, 0, 0), "scored", rewards(0.9, 0.4, 0.4, 0.5), 0.5)
    assert found.accuracy == 0.5 and found.kappa == 0.0
    assert measure(scored(1, 1, 0, 0), "scored", rewards(0.9, 0.5, 0.4, 0.0), 0.5).kappa == 1.0


def test_a_tie_of_a_pair_counts_half():
    given = {("e0", 0): 1.0, ("e0", 1): 0.0, ("e1", 0): 0.5, ("e1", 1): 0.5, ("e2", 0): 0.2, ("e2", 1): 0.3}
    assert measure(PAIRS, "paired", given, 0.5).accuracy == pytest.approx(0.5)


def test_of_a_ranking_the_share_of_pairs_in_order_counts():
    given = {("e0", 0): 0.9, ("e0", 1): 0.1, ("e0", 2): 0.5}
    assert measure(RANKED, "ranked", given, 0.5).accuracy == pytest.approx(2 / 3)


def test_what_could_not_be_judged_is_wrong_and_counted():
    for label in (0, 1):
        found = measure(scored(label, label), "scored", rewards(None, label), 0.5)
        assert (found.accuracy, found.could_not_judge) == (0.5, 1)
    pair = {("e0", 0): None, ("e0", 1): 0.0, ("e1", 0): 1.0, ("e1", 1): None, ("e2", 0): 1.0, ("e2", 1): 0.0}
    found = measure(PAIRS, "paired", pair, 0.5)
    assert (found.accuracy, found.could_not_judge) == (pytest.approx(1 / 3), 2)


def test_kappa_of_pairs_is_0_for_a_coin_and_1_for_the_right_order():
    right = {(one.id, number): 1.0 - number for one in PAIRS for number in (0, 1)}
    tied = dict.fromkeys(right, 0.5)
    assert measure(PAIRS, "paired", right, 0.5).kappa == 1.0
    assert measure(PAIRS, "paired", tied, 0.5).kappa == 0.0


def test_answers_to_one_question_count_as_one_for_the_interval():
    same = [RubricExample(f"e{n}", "q", ("a",), (1.0,)) for n in range(10)]
    found = measure(same, "scored", rewards(*[1.0] * 10), 0.5)
    assert (found.low, found.high) == wilson(1, 1)


def test_good_answers_are_compared_with_bad_ones_and_ranks_within_an_example():
    assert comparisons(scored(1, 0, 1), "scored") == [(("e0", 0), ("e1", 0)), (("e2", 0), ("e1", 0))]
    assert len(comparisons(RANKED, "ranked")) == 3


@given(st.lists(st.tuples(st.booleans(), st.none() | st.floats(0, 1)), min_size=1, max_size=20))
def test_no_other_pass_mark_agrees_with_more_examples(rows):
    examples, given = scored(*(good for good, _ in rows)), rewards(*(reward for _, reward in rows))
    mark = pass_mark(examples, "scored", given)
    assert 0 < mark <= 1
    best = max(measure(examples, "scored", given, other / 20).accuracy for other in range(1, 21))
    found = measure(examples, "scored", given, mark).accuracy
    assert found >= best or any(reward is not None and abs(reward - mark) < 0.002 for _, reward in rows)


def test_of_equally_good_pass_marks_the_one_nearest_to_a_half_is_taken():
    assert pass_mark(scored(1, 0), "scored", rewards(1.0, 0.0)) == 0.5
    assert pass_mark(scored(1, 0), "scored", rewards(1.0, 0.8)) == 0.9
