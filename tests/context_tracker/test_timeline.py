import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astune.context_tracker.timeline import BRANCH, merge_turns
from astune.types import Turn

TOKENS = st.lists(st.integers(0, 2), max_size=5).map(tuple)


def turn(prompt, output, *, agent="a", trainable=True, version=0):
    logprobs = tuple(-0.5 - index for index in range(len(output)))
    return Turn(agent, tuple(prompt), tuple(output), logprobs, version, "stop", trainable=trainable)


@st.composite
def histories(draw):
    """Turns that extend, cut back, repeat or ignore the ones before."""
    turns = []
    for _ in range(draw(st.integers(0, 8))):
        prompt = draw(TOKENS)
        if turns and draw(st.booleans()):
            earlier = draw(st.sampled_from(turns))
            ids = earlier.prompt_ids + earlier.output_ids
            prompt = ids[: draw(st.integers(0, len(ids)))] + prompt if draw(st.booleans()) else ids + prompt
        agent = draw(st.sampled_from(["a", "b"]))
        turns.append(turn(prompt, draw(TOKENS), agent=agent, trainable=draw(st.booleans())))
    return turns


@given(histories())
def test_every_turn_is_in_exactly_one_timeline_in_the_context_the_engine_saw(turns):
    timelines = merge_turns(turns)
    spans = [(span, timeline) for timeline in timelines for span in timeline.spans]
    assert sorted(span.turn for span, _ in spans) == list(range(len(turns)))
    for span, timeline in spans:
        own = turns[span.turn]
        assert timeline.agent == own.agent
        assert timeline.token_ids[: span.stop] == own.prompt_ids + own.output_ids
        assert span.start == len(own.prompt_ids)
        assert timeline.logprobs[span.start : span.stop] == own.logprobs
        assert timeline.loss_mask[span.start : span.stop] == (own.trainable,) * len(own.output_ids)
        assert span.trainable == own.trainable


@given(histories())
def test_loss_and_logprobs_are_zero_off_the_spans(turns):
    for timeline in merge_turns(turns):
        sampled = {place for span in timeline.spans for place in range(span.start, span.stop)}
        for place in set(range(len(timeline.token_ids))) - sampled:
            assert not timeline.loss_mask[place]
            assert timeline.logprobs[place] == 0.0


@given(histories())
def test_trained_tokens_are_the_sampled_tokens_of_trainable_turns(turns):
    trained = sum(timeline.trained_tokens for timeline in merge_turns(turns))
    assert trained == sum(len(each.output_ids) for each in turns if each.trainable)


@given(histories())
def test_a_timeline_is_begun_only_where_no_earlier_one_could_go_on(turns):
    timelines = merge_turns(turns)
    for timeline in timelines:
        first = timeline.spans[0].turn
        prompt = turns[first].prompt_ids
        for other in timelines:
            if other is timeline or other.agent != timeline.agent:
                continue
            before = [span for span in other.spans if span.turn < first]
            if before:  # the tokens that the other timeline had when this one was begun
                assert other.token_ids[: before[-1].stop] != prompt[: before[-1].stop]


@given(histories())
def test_only_an_agents_first_timeline_has_no_cause(turns):
    seen = set()
    for timeline in merge_turns(turns, ["edited"] * len(turns)):
        assert timeline.fork == ("edited" if timeline.agent in seen else None)
        seen.add(timeline.agent)


@given(st.lists(st.tuples(TOKENS, TOKENS), min_size=1, max_size=8))
def test_an_append_only_history_is_one_timeline(steps):
    ids, turns = (), []
    for new, output in steps:
        turns.append(turn(ids + new, output))
        ids = ids + new + output
    (timeline,) = merge_turns(turns)
    assert timeline.token_ids == ids


def test_agents_that_take_turns_keep_their_own_timelines():
    turns = [
        turn([1], [2]),
        turn([1], [5], agent="b"),
        turn([1, 2, 3], [4]),
        turn([1, 5, 6], [7], agent="b"),
    ]
    assert [timeline.token_ids for timeline in merge_turns(turns)] == [(1, 2, 3, 4), (1, 5, 6, 7)]


def test_a_fork_can_be_gone_on_with_and_so_can_what_it_forked_from():
    turns = [turn([1], [2]), turn([1], [3]), turn([1, 2, 9], [4]), turn([1, 3, 9], [5])]
    timelines = merge_turns(turns)
    assert [timeline.token_ids for timeline in timelines] == [(1, 2, 9, 4), (1, 3, 9, 5)]
    assert [timeline.fork for timeline in timelines] == [None, BRANCH]


def test_shared_sampled_tokens_are_context_in_the_fork():
    turns = [turn([1], [2]), turn([1, 2, 3], [4]), turn([1, 2, 8], [5])]
    kept, fork = merge_turns(turns, [None, None, "history_edited"])
    assert kept.loss_mask == (False, True, False, True)
    assert fork.token_ids == (1, 2, 8, 5)
    assert fork.loss_mask == (False, False, False, True)
    assert fork.fork == "history_edited"


def test_the_longest_timeline_goes_on():
    turns = [turn([1, 2], [3]), turn([1], []), turn([1, 2, 3, 4], [5]), turn([1, 7], [8])]
    assert [timeline.token_ids for timeline in merge_turns(turns)] == [(1, 2, 3, 4, 5), (1, 7, 8)]


def test_versions_and_temperatures_stay_with_their_span():
    turns = [turn([1], [2], version=3), turn([1, 2], [4], version=5)]
    (timeline,) = merge_turns(turns)
    assert [span.policy_version for span in timeline.spans] == [3, 5]


def test_causes_must_match_the_turns():
    with pytest.raises(ValueError, match="1 turns but 2 fork causes"):
        merge_turns([turn([1], [2])], [None, None])


def test_two_hundred_long_turns_merge_whether_they_extend_or_fork():
    draw = random.Random(0)
    ids = [draw.randrange(150_000) for _ in range(32_000)]
    step = len(ids) // 200
    extending = [turn(ids[: step * i], ids[step * i : step * i + 50]) for i in range(1, 200)]
    forking = [turn(ids, [i]) for i in range(200)]
    assert len(merge_turns(extending)) == 1
    assert len(merge_turns(forking)) == 200
