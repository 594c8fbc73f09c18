"""Timelines by example; `test_histories.py` holds them against the definitions for any history."""

import random
from dataclasses import replace

import pytest

from astune.context_tracker.forks import BRANCH, OTHER_AGENT
from astune.context_tracker.merge import TurnForest
from astune.token_ids import TokenIds
from astune.types import Turn


def turn(prompt, output, *, agent="a", excluded=None, version=0, fork=None):
    logprobs = [-0.5 - index for index in range(len(output))]
    return Turn(agent, prompt, output, logprobs, version, "stop", excluded=excluded, fork=fork)


def rows(timelines):
    return [tuple(line.token_ids) for line in timelines]


def shared(line):
    return [span.shared for span in line.spans]


def test_the_example_of_the_module():
    a, b, c, d, e, f, g, h, i, x, j = range(11)
    turns = [
        turn([a, b, c], [d, e]),
        turn([a, b, c, d, e, f], [g]),
        turn([a, b, c, d, e, h], [i]),
        turn([a, b, x], [j]),
    ]
    timelines = TurnForest(turns).timelines()
    assert rows(timelines) == [(a, b, c, d, e, f, g), (a, b, c, d, e, h, i), (a, b, x, j)]
    assert [[span.turn for span in line.spans] for line in timelines] == [[0, 1], [0, 2], [3]]
    assert [shared(line) for line in timelines] == [[False, False], [True, False], [False]]


def test_an_append_only_history_is_one_timeline():
    ids, turns = TokenIds(), []
    for step in range(20):
        turns.append(turn(TokenIds([step, step + 1], ids), [7] * (step % 3)))
        ids = turns[-1].prompt_ids + turns[-1].output_ids
    (timeline,) = TurnForest(turns).timelines()
    assert timeline.token_ids == ids
    assert timeline.fork is None


def test_agents_that_take_turns_keep_their_own_timelines():
    turns = [
        turn([1], [2]),
        turn([1], [5], agent="b"),
        turn([1, 2, 3], [4]),
        turn([1, 5, 6], [7], agent="b"),
    ]
    assert rows(TurnForest(turns).timelines()) == [(1, 2, 3, 4), (1, 5, 6, 7)]


def test_a_fork_can_be_gone_on_with_and_so_can_what_it_forked_from():
    turns = [turn([1], [2]), turn([1], [3]), turn([1, 2, 9], [4]), turn([1, 3, 9], [5])]
    timelines = TurnForest(turns).timelines()
    assert rows(timelines) == [(1, 2, 9, 4), (1, 3, 9, 5)]
    assert [timeline.fork for timeline in timelines] == [None, BRANCH]


def test_shared_sampled_tokens_are_context_in_the_fork():
    turns = [turn([1], [2]), turn([1, 2, 3], [4]), turn([1, 2, 8], [5], fork="history_edited")]
    kept, fork = TurnForest(turns).timelines()
    assert kept.loss_mask == (False, True, False, True)
    assert fork.token_ids == (1, 2, 8, 5)
    assert fork.loss_mask == (False, False, False, True)
    assert fork.logprobs == (0.0, -0.5, 0.0, -0.5)
    assert fork.fork == "history_edited"


def test_the_longest_timeline_goes_on():
    turns = [turn([1, 2], [3]), turn([1], []), turn([1, 2, 3, 4], [5]), turn([1, 7], [8])]
    assert rows(TurnForest(turns).timelines()) == [(1, 2, 3, 4, 5), (1, 7, 8)]


def test_the_reason_of_the_prompt_counts_only_where_it_forks():
    turns = [turn([1], [2], fork="history_edited"), turn([1, 2, 3], [4], fork="compacted"), turn([9], [4])]
    assert [line.fork for line in TurnForest(turns).timelines()] == ["history_edited", BRANCH]


def test_an_agent_that_begins_with_what_another_one_has_says_so():
    turns = [turn([1], [2]), turn([1, 2, 3], [4], agent="b"), turn([1, 8], [9], agent="c")]
    assert [line.fork for line in TurnForest(turns).timelines()] == [None, OTHER_AGENT, None]


def test_versions_and_temperatures_stay_with_their_span():
    turns = [turn([1], [2], version=3), replace(turn([1, 2], [4], version=5), temperature=0.5)]
    (timeline,) = TurnForest(turns).timelines()
    assert [(span.policy_version, span.temperature) for span in timeline.spans] == [(3, 1.0), (5, 0.5)]


def test_turns_that_are_not_trained_are_in_the_timeline_without_loss():
    turns = [turn([1], [2], excluded="frozen"), turn([1, 2, 3], [4])]
    (timeline,) = TurnForest(turns).timelines()
    assert timeline.loss_mask == (False, False, False, True)
    assert timeline.trained_tokens == 1


def grow(*turns):
    forest = TurnForest()
    for each in turns:
        forest.add(each)
    return forest


def test_an_answer_that_was_asked_for_again_is_not_trained():
    forest = grow(turn([1], [2]))
    forest.exclude_repeated("a", TokenIds([1]), 1, "retried")
    forest.add(turn([1], [3]))
    assert [each.excluded for each in forest.turns] == ["retried", None]
    assert [line.loss_mask for line in forest.timelines()] == [(False, False), (False, True)]


@pytest.mark.parametrize("agent, prompt", [("b", [1]), ("a", [2]), ("a", [1, 2])])
def test_only_the_same_request_of_the_same_agent_is_asked_for_again(agent, prompt):
    forest = grow(turn([1], [2]))
    forest.exclude_repeated(agent, TokenIds(prompt), 1, "retried")
    assert forest.turns[0].excluded is None


def test_an_answer_that_was_gone_on_with_did_arrive():
    forest = grow(turn([1], [2]), turn([1, 2, 3], [4]))
    forest.exclude_repeated("a", TokenIds([1]), 1, "retried")
    assert forest.turns[0].excluded is None


def test_the_first_reason_not_to_train_stays():
    forest = grow(turn([1], [2], excluded="frozen"))
    forest.exclude_repeated("a", TokenIds([1]), 1, "retried")
    assert forest.turns[0].excluded == "frozen"


def test_of_two_equal_answers_the_one_that_arrived_goes_on():
    forest = grow(turn([1], [2]))
    forest.exclude_repeated("a", TokenIds([1]), 1, "retried")
    forest.add(turn([1], [2]))
    forest.add(turn([1, 2, 3], [4]))
    lost, kept = forest.timelines()
    assert [span.turn for span in lost.spans] == [0]
    assert [span.turn for span in kept.spans] == [1, 2]


def test_timelines_can_be_asked_for_at_any_time():
    forest = grow(turn([1], [2]))
    before = forest.timelines()
    forest.add(turn([1, 2, 3], [4]))
    assert rows(before) == [(1, 2)]
    assert rows(forest.timelines()) == [(1, 2, 3, 4)]


def test_two_hundred_long_turns_merge_whether_they_extend_or_fork():
    draw = random.Random(0)
    ids = [draw.randrange(150_000) for _ in range(32_000)]
    step = len(ids) // 200
    extending = [turn(ids[: step * i], ids[step * i : step * i + 50]) for i in range(1, 200)]
    forking = [turn(ids, [i]) for i in range(200)]
    assert len(TurnForest(extending).timelines()) == 1
    assert len(TurnForest(forking).timelines()) == 200
