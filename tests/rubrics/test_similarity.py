"""Criteria that say the same are found by wording or by scores. The pairs were written by hand, as language models word
criteria."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astune.rubrics.similarity import cosine, duplicate_groups, gram, same_scores, tf_idf
from tests.rows import each_row

SAME = [
    ("Mentions the unit of the quantity.", "The unit of the quantity is mentioned."),
    ("States the unit of measurement", "The answer states units of measurement for its result"),
    ("Does not apologise.", "The response does not contain an apology."),
    ("Avoids apologies and apologetic phrases.", "Contains no apology."),
    ("Tells the user the next step to take.", "States a clear next step."),
    ("The next step is stated explicitly.", "Ends by stating the next step for the user."),
    ("Quotes the order number.", "The order number is quoted in the reply."),
    ("Repeats the customer's order number", "The reply mentions the order number of the customer"),
    ("Gives a concrete example.", "Includes at least one concrete example."),
    ("Uses a numbered list.", "The steps are a numbered list."),
    ("Is at most 40 words long.", "The answer has at most 40 words."),
    ("Ends with a question.", "The last sentence is a question; the answer ends with it."),
    ("Cites the source of its claim.", "Cites a source for every claim."),
    ("Shows the calculation step by step.", "The calculation is shown step by step."),
    ("The code runs without errors.", "Code in the answer runs without any errors."),
    ("Greets the customer by name.", "The greeting addresses the customer by name."),
    ("回答提到了单位", "回答中提到单位"),
]

DIFFERENT = [
    ("Mentions the unit of the quantity.", "Mentions the order number."),
    ("Is at most 40 words long.", "Is at most 80 words long."),
    ("Does not apologise.", "Apologises."),
    ("Contains no apology.", "Contains an apology."),
    ("Gives a concrete example.", "Gives the next step."),
    ("Uses a numbered list.", "Ends with a question."),
    ("States the next step.", "States the unit."),
    ("Quotes the order number.", "Quotes the price."),
    ("Greets the customer by name.", "Thanks the customer."),
    ("The answer is polite.", "The answer is short."),
    ("Cites the source of its claim.", "Makes no claim that the source does not support."),
    ("Shows the calculation step by step.", "States the final result on a line of its own."),
    ("The code runs without errors.", "The code has comments."),
    ("Explains why the error occurs.", "Explains how the error is fixed."),
    ("Asks for missing details.", "Gives details of the process."),
    ("Uses plain words.", "Uses at most three sentences."),
    ("The tone is friendly.", "The tone is formal."),
    ("Names a date for the refund.", "Names the amount of the refund."),
    ("回答提到了单位", "回答不超过四十个字"),
]

POOL = [text for pair in SAME + DIFFERENT for text in pair]


def groups(texts: list[str]) -> list[list[int]]:
    return duplicate_groups(texts, [[] for _ in texts])


def same_group(one: str, other: str, texts: list[str]) -> bool:
    return any({texts.index(one), texts.index(other)} <= set(group) for group in groups(texts))


@each_row(("one", "other"), DIFFERENT)
def test_criteria_that_say_different_things_stay_apart(one: str, other: str) -> None:
    assert groups([one, other]) == [[0], [1]]


def test_no_two_different_criteria_share_a_group_among_many() -> None:
    pool = list(dict.fromkeys(POOL))
    assert [pair for pair in DIFFERENT if same_group(*pair, pool)] == []


def test_most_paraphrases_are_found_among_many() -> None:
    pool = list(dict.fromkeys(POOL))
    missed = [pair for pair in SAME if not same_group(*pair, pool)]
    assert len(missed) <= 0.3 * len(SAME), missed


def test_groups_keep_the_order_of_first_appearance() -> None:
    assert groups(["Uses plain words.", "Quotes the order number.", "Plain words are used.", "Is polite."]) == [
        [0, 2],
        [1],
        [3],
    ]


def test_equal_scores_make_one_criterion_of_two_wordings() -> None:
    ups = [1.0, 0.0] * 10
    assert duplicate_groups(["Is polite.", "Names a date."], [ups, ups]) == [[0, 1]]
    assert duplicate_groups(["Is polite.", "Names a date."], [ups, [0.0, *ups[1:]]]) == [[0, 1]]  # 19 of 20
    assert duplicate_groups(["Is polite.", "Names a date."], [ups, [0.0, 1.0, *ups[2:]]]) == [[0], [1]]  # 18 of 20


def test_what_is_like_a_later_member_of_a_group_does_not_join_it() -> None:
    first = [1.0, 0.0] * 10
    second = [0.0, *first[1:]]
    third = [0.0, 1.0, *first[2:]]
    assert duplicate_groups(["Is polite.", "Names a date.", "Has a list."], [first, second, third]) == [[0, 1], [2]]


def test_equal_scores_of_few_answers_or_without_variation_say_nothing() -> None:
    assert not same_scores([1.0, 0.0] * 3, [1.0, 0.0] * 3)
    assert not same_scores([1.0] * 20, [1.0] * 20)
    assert not same_scores([1.0] * 19 + [0.0], [1.0] * 20)
    assert not same_scores([1.0, 0.0] * 4 + [None] * 4, [None] * 4 + [1.0, 0.0] * 4)
    assert same_scores([None, *[1.0, 0.0] * 4], [1.0, *[1.0, 0.0] * 4])


def test_a_text_without_words_is_like_nothing_but_itself() -> None:
    assert tf_idf(["...", "Is polite."])[0] == {}
    assert gram(["...", "Is polite."]) == [[1.0, 0.0], [0.0, 1.0]]


@given(st.lists(st.text(min_size=1, max_size=30), min_size=1, max_size=8))
def test_vectors_have_length_one_and_cosines_are_symmetric(texts: list[str]) -> None:
    vectors = tf_idf(texts)
    for vector in vectors:
        assert not vector or cosine(vector, vector) == pytest.approx(1.0)
    likeness = gram(texts)
    assert all(0.0 <= value <= 1.0 for row in likeness for value in row)
    assert likeness == [list(column) for column in zip(*likeness, strict=True)]


@given(st.permutations(POOL[:12]))
def test_vectors_do_not_depend_on_the_order_of_the_texts(texts: list[str]) -> None:
    assert dict(zip(texts, tf_idf(texts), strict=True)) == dict(zip(POOL[:12], tf_idf(POOL[:12]), strict=True))


@given(st.lists(st.sampled_from(POOL), min_size=1, max_size=20))
def test_every_criterion_is_in_one_group(texts: list[str]) -> None:
    found = groups(texts)
    assert sorted(index for group in found for index in group) == list(range(len(texts)))
    assert [group[0] for group in found] == sorted(group[0] for group in found)
