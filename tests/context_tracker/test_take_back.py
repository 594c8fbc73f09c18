"""A tracker that takes recorded turns back goes on as the one that recorded them."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astune.context_tracker.tracker import ChatRequest, ContextTracker
from astune.testing import ScriptedPolicy
from astune.types import Sampling
from tests.context_tracker.test_tracker_histories import AnyTokens, agent, rewritten, user


def taken_back(tracker, policy, chat_format):
    copy = ContextTracker(policy, chat_format, Sampling(64), max_turns=1000, seed=0)
    copy.take_back([tracker.get_known_turn(number) for number in range(len(tracker.turns))])
    return copy


async def play_and_go_on(chance, chat_format):
    """Random agents with one tracker, then the same further calls to it and to one that took its turns back. Both."""
    tracker = ContextTracker(AnyTokens(chance, chat_format), chat_format, Sampling(64), max_turns=1000, seed=0)
    others = []
    names = "ab"[: chance.randint(1, 2)]
    await asyncio.gather(*(agent(chance, tracker, name, others) for name in names))
    copy = taken_back(tracker, AnyTokens(chance, chat_format), chat_format)
    assert (copy.turns, copy.timelines()) == (tracker.turns, tracker.timelines())
    for number in range(3):
        messages = [*chance.choice(others), user(chance)] if others else [user(chance)]
        messages = rewritten(chance, messages) if chance.randrange(3) == 0 else messages
        request, name = ChatRequest(messages, retry=chance.randrange(6) == 0), chance.choice(names)
        policies = [ScriptedPolicy([str(number)], chat_format) for _ in range(2)]
        for each, policy in zip((tracker, copy), policies, strict=True):
            each._sources[None]._policy = policy
            await each.chat(name, request)
        assert policies[0].calls == policies[1].calls
    return copy, tracker


@pytest.mark.parametrize("template", ["qwen3", "chat_format"])
@settings(max_examples=15)
@given(chance=st.randoms(use_true_random=False))
def test_prompts_forks_and_timelines_are_those_of_a_tracker_that_was_never_stopped(
    template, chance, chat_format, qwen3
):
    copy, tracker = asyncio.run(play_and_go_on(chance, {"qwen3": qwen3, "chat_format": chat_format}[template]))
    assert (copy.turns, copy.timelines()) == (tracker.turns, tracker.timelines())


async def test_stop_texts_forced_starts_and_raw_texts_are_taken_back(chat_format):
    answers = ["4 END", '"x": 1}', " upon a time", "5", "6", "7"]
    tracker = ContextTracker(ScriptedPolicy(answers, chat_format), chat_format, Sampling(64), max_turns=9, seed=0)
    first = ChatRequest([{"role": "user", "content": "2 + 2?"}], stop=("END",))
    second = ChatRequest([{"role": "user", "content": "As JSON."}], force="json_object")
    answered = [await tracker.chat("a", request) for request in (first, second)]
    raw = await tracker.chat("a", ChatRequest((), prompt="Once"))
    assert [tracker.get_known_turn(number)[2:] for number in range(2)] == [(0, 2), (1, None)]
    policy = ScriptedPolicy(answers[3:], chat_format)
    copy = taken_back(tracker, policy, chat_format)
    for request, answer in zip((first, second), answered, strict=True):
        more = [*request.messages, answer.message, {"role": "user", "content": "More."}]
        for each in (tracker, copy):
            await each.chat("a", ChatRequest(more))
    for each in (tracker, copy):
        await each.chat("a", ChatRequest((), prompt=f"Once{raw.message['content']}, there"))
    assert copy.turns[3].fork == "stop_text_removed" and copy.turns[4].follows == 1
    assert [turn.prompt_ids for turn in copy.turns] == [turn.prompt_ids for turn in tracker.turns]
    assert [line.fork for line in copy.timelines()] == [line.fork for line in tracker.timelines()]
