"""Random agents against the definitions. `make test-histories` tries 10,000 histories instead of 500."""

import os
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from astune.context_tracker.merge import TurnForest
from tests.context_tracker.histories import (
    Call,
    check_all,
    check_credit,
    check_merge,
    grow,
    random_history,
)
from tests.rows import each_row

HISTORIES = int(os.environ.get("HISTORIES", "500"))


@settings(max_examples=HISTORIES)
@given(st.randoms(use_true_random=False))
def test_whatever_agents_do_every_sampled_token_is_trained_once_in_the_context_it_was_sampled_in(chance):
    check_all(chance)


def test_random_histories_do_all_that_they_should():
    """Otherwise the test above would prove less than it says."""
    histories = [random_history(Random(seed)) for seed in range(300)]
    calls = [call for history in histories for call in history]
    assert {call.excluded for call in calls} == {None, "frozen", "greedy"}
    assert any(call.retry for call in calls) and any(not call.output for call in calls)
    forests = [grow(history, ropes=True) for history in histories]
    lines = [line for forest in forests for line in forest.timelines()]
    assert {line.fork for line in lines} == {None, "branch", "other_agent", "history_edited"}
    assert any(turn.excluded == "retried" for forest in forests for turn in forest.turns)
    assert sum(len(line.spans) > 2 for line in lines) > 100
    assert sum(span.shared for line in lines for span in line.spans) > 100


def calls(*rows):
    """Calls from (agent, prompt, output), one character per token."""
    return [Call(agent, tuple(map(ord, prompt)), tuple(map(ord, output))) for agent, prompt, output in rows]


EDGES = {
    "nothing": calls(),
    "no tokens at all": calls(("a", "", "")),
    "an empty prompt": calls(("a", "", "x"), ("a", "", "y"), ("b", "", "x")),
    "empty outputs go on": calls(("a", "ab", ""), ("a", "ab", ""), ("a", "abc", ""), ("a", "abd", "")),
    "identical turns": calls(("a", "ab", "CD"), ("a", "ab", "CD"), ("a", "ab", "CD")),
    "identical turns, each gone on with": calls(
        ("a", "ab", "C"), ("a", "ab", "C"), ("a", "abCd", "E"), ("a", "abCd", "F"), ("a", "abCd", "G")
    ),
    "the same tokens by two agents": calls(("a", "ab", "C"), ("b", "ab", "C"), ("a", "abCd", "E"), ("b", "abCd", "E")),
    "another agent's answer as the prompt": calls(("a", "ab", "C"), ("b", "abC", "D"), ("a", "abCD", "E")),
    "an answer within another one": calls(("a", "ab", "CDEF"), ("a", "ab", "CD"), ("a", "abCDg", "H")),
    "an answer that is longer than an earlier one": calls(("a", "ab", "CD"), ("a", "ab", "CDEF"), ("a", "abCDEFg", "")),
    "a prompt with half of an earlier answer": calls(("a", "ab", "CDEF"), ("a", "abCD", "X"), ("a", "abCDXe", "F")),
    "a prompt that ends within an earlier prompt": calls(
        ("a", "abcdef", "G"), ("a", "abc", "deF"), ("a", "abcdeF", "")
    ),
    "a prompt that is an earlier whole": calls(("a", "ab", "C"), ("a", "abC", "D"), ("a", "abCD", "")),
    "prompts that get shorter": calls(("a", "abcd", "E"), ("a", "abc", "D"), ("a", "ab", "C"), ("a", "a", "B")),
    "shorter prompts that meet what is there": calls(("a", "abcd", "E"), ("a", "abc", "d"), ("a", "abcdE", "f")),
    "a row that was left is gone back to": calls(
        ("a", "a", "B"), ("a", "aBc", "D"), ("a", "aBx", "Y"), ("a", "aBcDe", "F"), ("a", "aBxYz", "W")
    ),
    "three branches of one turn": calls(("a", "a", "B"), ("a", "aBc", "D"), ("a", "aBe", "F"), ("a", "aBg", "H")),
}


@each_row("name", EDGES)
def test_edges_are_as_the_definitions_say(name):
    history = EDGES[name]
    for ropes in (True, False):
        check_merge(history, ropes=ropes)
        check_credit([history, calls(("a", "q", "R"))], "episode_mean", ropes=ropes)
    check_merge(history[::-1], ropes=False)


def test_forests_of_the_same_objects_do_not_disturb_each_other():
    """Forests let objects share what they have in common: one may cut where another does not."""
    for seed in range(200):
        chance = Random(seed)
        history = random_history(chance)
        turns = grow(history, ropes=True).turns
        left, right = [], []
        first, second = TurnForest(), TurnForest()
        for turn in turns:
            for forest, order in chance.sample([(first, left), (second, right)], 2):
                forest.add(turn)
                order.append(turn)
        assert first.timelines() == second.timelines()
        assert [tuple(turn.prompt_ids) for turn in turns] == [call.prompt for call in history]
