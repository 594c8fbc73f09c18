"""Conversations that get too long are cut in the same way in each later call, whatever their agents do."""

import asyncio
import copy
from collections import Counter
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astune.config.rollout import ContextConfig
from astune.context_tracker.agent_models import AgentModels
from astune.context_tracker.cuts import GO_ON, TAKEN_OUT, CutTracker
from astune.context_tracker.tracker import ChatRequest
from astune.errors import ContextOverflow
from astune.sampling import ContextCut
from astune.testing import ScriptedPolicy
from astune.types import Episode, Sampling, StopReason, Task, Verdict
from tests.context_tracker.histories import AGGREGATIONS, check_samples, facts, rows
from tests.context_tracker.test_tracker_histories import AnyTokens, agent, calls_of

SYSTEM = {"role": "system", "content": "Be brief."}
QUESTION = {"role": "user", "content": "Which page names the key?"}
READ = [{"type": "function", "function": {"name": "read", "parameters": {"type": "object", "properties": {}}}}]
CALL = '<tool_call>\n{"name": "read", "arguments": {}}\n</tool_call>'


def result(number):
    return f"page {number}: " + "so it goes on " * 12


def kept(strategy, **keys):
    return ContextConfig(strategy=strategy, **keys)


def make(chat_format, config, answers, context_length=1000):
    policy = ScriptedPolicy(answers, chat_format, context_length=context_length)
    return CutTracker(config, policy, chat_format, Sampling(120), max_turns=40, seed=1)


async def read_pages(tracker, pages, **asked):
    """An agent that reads so many pages, each in a call of its own, and its history."""
    messages = [SYSTEM, QUESTION]
    for number in range(pages + 1):
        answer = await tracker.chat("reader", ChatRequest(messages, READ, **asked))
        messages = [*messages, answer.message]
        for call in answer.message.get("tool_calls", ()):
            messages = [*messages, {"role": "tool", "tool_call_id": call["id"], "content": result(number)}]
    return messages


def shown(turn):
    """The messages of a turn in short."""
    short = {TAKEN_OUT: "-", None: "call", "": "call", QUESTION["content"]: "Q"}
    texts = [message["content"] for message in turn.messages[1:]]
    return " ".join(
        short.get(text) or (text.split(":")[0].replace(" ", "") if text.startswith("page") else text.replace(" ", "_"))
        for text in texts
    )


def scripted(prompt):
    return "what I found" if prompt.rpartition("user")[2].startswith("\nSum") else CALL


Q_S = f"Q\n\n{GO_ON}what I found".replace("Q", QUESTION["content"]).replace(" ", "_")


@pytest.mark.parametrize(
    ("config", "prompts"),
    [
        (kept("discard", at=0.6), ["Q", "Q call page0", "Q call page0 call page1", "Q call - call - call page2"]),
        (
            kept("discard", at=500, keep=2),
            ["Q", "Q call page0", "Q call page0 call page1", "Q call - call page1 call page2"],
        ),
        (
            kept("summarise", at=0.6, prompt="Sum"),
            ["Q", "Q call page0", "Q call page0 call page1", "Q call page0 call page1 Sum", f"{Q_S} call page2"],
        ),
        (
            kept("restart", at=0.6, prompt="Sum"),
            ["Q", "Q call page0", "Q call page0 call page1", "Q call page0 call page1 call page2 Sum", Q_S],
        ),
    ],
    ids=["discard", "keep 2", "summarise", "restart"],
)
async def test_each_strategy_makes_room_and_the_agents_history_stays_whole(chat_format, config, prompts):
    tracker = make(chat_format, config, scripted)
    history = await read_pages(tracker, 3)
    assert [shown(turn) for turn in tracker.turns][: len(prompts)] == prompts
    assert [message["content"] for message in history if message["role"] == "tool"] == list(map(result, range(4)))


async def test_an_agent_on_one_of_several_models_sums_up_on_that_one(chat_format):
    policy = ScriptedPolicy(scripted, chat_format, context_length=1000)
    config, models = kept("summarise", at=0.6, prompt="Sum"), AgentModels({"wolf": True, "villager": True})
    tracker = CutTracker(config, policy, chat_format, Sampling(120), max_turns=40, seed=1, models=models)
    tracker.chat = partial(tracker.chat, source="villager")
    await read_pages(tracker, 3)
    assert [shown(turn) for turn in tracker.turns][-2:] == ["Q call page0 call page1 Sum", f"{Q_S} call page2"]
    assert {turn.model for turn in tracker.turns} == {"villager"} and tracker.turns[-1].cut is not None


@pytest.mark.parametrize(
    ("strategy", "messages", "summary"), [("discard", 2, None), ("summarise", 4, 3), ("restart", 6, 3)]
)
async def test_a_cut_is_recorded_forks_with_its_cause_and_stays_until_the_next(
    chat_format, strategy, messages, summary
):
    prompt = {} if strategy == "discard" else {"prompt": "Sum"}
    tracker = make(chat_format, kept(strategy, at=0.6, **prompt), scripted)
    await read_pages(tracker, 3)
    number = 3 if summary is None else 4
    cut = tracker.turns[number]
    assert (cut.cut, cut.fork) == (ContextCut(strategy, messages, 695, summary), "context_cut")
    assert cut.follows == number - 1  # the summary, where there is one: it earns what comes after it
    assert [turn.fork for turn in tracker.turns if turn.cut is None] == [None] * number
    assert all(turn.trainable for turn in tracker.turns)


async def test_an_earlier_point_is_shown_whole_and_a_changed_system_message_changes_no_cut(chat_format):
    tracker = make(chat_format, kept("restart", at=0.6, prompt="Sum"), scripted)
    history = await read_pages(tracker, 3)
    await tracker.chat("reader", ChatRequest(history[:4], READ))
    assert shown(tracker.turns[-1]) == "Q call page0"
    stripped = [{key: value for key, value in each.items() if key != "reasoning_content"} for each in history[1:-2]]
    later = {"role": "system", "content": "Be brief. It is noon."}
    await tracker.chat("reader", ChatRequest([later, *stripped], READ))
    assert (shown(tracker.turns[-1]), tracker.turns[-1].cut) == (Q_S, None)


async def test_a_user_who_speaks_last_is_answered_word_for_word(chat_format):
    tracker = make(chat_format, kept("restart", at=200, prompt="Sum"), lambda prompt: "So it goes on. " * 6)
    messages = [SYSTEM]
    for number in range(3):
        messages.append({"role": "user", "content": f"Question {number}?"})
        messages.append((await tracker.chat("reader", ChatRequest(messages))).message)
    last = next(turn for turn in tracker.turns if turn.cut is not None)
    asked = last.messages[-1]["content"]
    assert asked.startswith("Question 0?") and asked.endswith("So it goes on. \n\nQuestion 2?")
    assert len(last.messages) == 2  # templates may want users and answers to take turns


async def test_without_anything_to_take_out_the_call_is_made_as_it_is(chat_format):
    tracker = make(chat_format, kept("summarise", at=1), ["4"], context_length=40)
    with pytest.raises(ContextOverflow):
        await tracker.chat("reader", ChatRequest([SYSTEM, QUESTION]))
    assert tracker.turns == ()


async def test_calls_side_by_side_share_a_cut(chat_format):
    tracker = make(chat_format, kept("restart", at=0.6, prompt="Sum"), scripted)
    history = [SYSTEM, QUESTION]
    for number in range(3):
        call = {"id": f"c{number}", "type": "function", "function": {"name": "read", "arguments": "{}"}}
        history.append({"role": "assistant", "content": None, "tool_calls": [call]})
        history.append({"role": "tool", "tool_call_id": f"c{number}", "content": result(number)})
    both = [tracker.chat("reader", ChatRequest(copy.deepcopy(history), READ)) for _ in range(2)]
    await asyncio.gather(*both)
    assert [shown(turn) for turn in tracker.turns][1:] == [Q_S, Q_S]
    assert [turn.cut is None for turn in tracker.turns] == [True, False, True]


class Counted(CutTracker):
    built = 0

    async def _build(self, *given, **named):
        self.built += 1
        return await super()._build(*given, **named)


@pytest.mark.parametrize(("strategy", "more"), [("discard", 1), ("restart", 2)])
async def test_a_prompt_is_rendered_once_but_for_a_cut(chat_format, strategy, more):
    """Each cut renders again what is left, and what its summary is made of."""
    config = kept(strategy, at=0.6, **({} if strategy == "discard" else {"prompt": "Sum"}))
    policy = ScriptedPolicy(scripted, chat_format, context_length=1000)
    tracker = Counted(config, policy, chat_format, Sampling(120), max_turns=40, seed=1)
    await read_pages(tracker, 4)
    cuts = sum(turn.cut is not None for turn in tracker.turns)
    assert cuts and tracker.built == 5 + more * cuts


async def play(chance, chat_format):
    """Random agents (`test_tracker_histories`), whose conversations are cut again and again."""
    strategy = chance.choice(["discard", "summarise", "restart"])
    policy = AnyTokens(chance, chat_format)
    config = kept(strategy, at=chance.choice([60.0, 120.0, 200.0]), keep=chance.randint(1, 3))
    tracker = CutTracker(config, policy, chat_format, Sampling(64), max_turns=1000, seed=0)
    others = []
    await asyncio.gather(*(agent(chance, tracker, name, others) for name in "abc"[: chance.randint(1, 3)]))
    return policy, tracker


@settings(max_examples=100)
@given(chance=st.randoms(use_true_random=False))
def test_every_sampled_token_is_trained_once_however_conversations_are_cut(chance, chat_format):
    policy, tracker = asyncio.run(play(chance, chat_format))
    turns, lines = tracker.turns, tracker.timelines()
    assert Counter((tuple(turn.prompt_ids), tuple(turn.output_ids)) for turn in turns) == Counter(policy.log)
    history = calls_of(turns)
    assert [facts(line) for line in lines] == rows(history)
    episode = Episode("e0", Task("t", "q"), turns, lines, StopReason.COMPLETED, None, Verdict(1.0))
    check_samples([episode], [history], chance.choice(AGGREGATIONS))
    assert {turn.fork for turn in turns if turn.cut is not None} <= {"context_cut"}


@settings(max_examples=40)
@given(
    strategy=st.sampled_from(["discard", "summarise", "restart"]),
    sizes=st.lists(st.integers(1, 300), min_size=3, max_size=12),
    at=st.integers(400, 1200),
    keep=st.integers(1, 3),
)
def test_prompts_only_grow_between_two_cuts(chat_format, strategy, sizes, at, keep):
    """An agent that only adds to its history has one timeline from one cut to the next."""
    config = kept(strategy, at=at, keep=keep, prompt="Sum")
    tracker = make(chat_format, config, scripted, context_length=10_000)

    async def read():
        messages = [SYSTEM, QUESTION]
        for size in sizes:
            answer = (await tracker.chat("a", ChatRequest(copy.deepcopy(messages), READ))).message
            call = answer["tool_calls"][0]["id"]
            messages += [answer, {"role": "tool", "tool_call_id": call, "content": "x" * size}]

    asyncio.run(read())
    summaries = {turn.cut.summary for turn in tracker.turns if turn.cut is not None}
    read_by = [turn for number, turn in enumerate(tracker.turns) if number not in summaries]
    assert len(read_by) == len(sizes)
    for before, after in pairwise(read_by):
        whole = [*before.prompt_ids, *before.output_ids]
        assert after.cut is not None or list(after.prompt_ids[: len(whole)]) == whole
        assert after.cut is None or after.cut.prompt_tokens >= at
