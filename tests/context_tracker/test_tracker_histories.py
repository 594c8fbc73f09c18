"""Random agents with a whole tracker: messages in, any tokens out, and the definitions hold of what it records."""

import asyncio
import copy
import os
from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astune.context_tracker.tracker import ChatRequest, ContextTracker
from astune.types import Episode, Generation, Sampling, StopReason, Task, Verdict
from tests.context_tracker.histories import AGGREGATIONS, Call, check_samples, facts, rows

HISTORIES = int(os.environ.get("HISTORIES", "500")) // 5
SYSTEM = {"role": "system", "content": "Be brief."}
TEXTS = ["Hi", "2 + 2?", "Größe 大 🙂", " ", "<think>", "a\n\nb"]
TOOLS = [{"type": "function", "function": {"name": "calc", "parameters": {"type": "object", "properties": {}}}}]
ANSWERS = ['<tool_call>\n{"name": "calc", "arguments": {"x":1}}\n</tool_call>', "<think>\nHm.\n</think>\n\n4", "4", ""]


class AnyTokens:
    """Answers with tokens that no tokenizer would choose, with texts agents know, or with nothing; some are cut off.
    Calls end in any order."""

    context_length = 100_000

    def __init__(self, chance, chat_format):
        self.chance = chance
        self.format = chat_format
        self.log = []

    async def generate(self, prompt_ids, sampling):
        ids = self.format.encode(self.chance.choice(ANSWERS))
        if self.chance.randrange(2):
            drawn = [self.chance.randrange(300) for _ in range(self.chance.randrange(6))]
            ids = [token for token in drawn if token not in self.format.stop_token_ids]
        ended = self.chance.randrange(4) > 0
        output = (*ids, *self.format.stop_token_ids[:1]) if ended else tuple(ids)
        for _ in range(self.chance.randrange(4)):
            await asyncio.sleep(0)
        self.log.append((tuple(prompt_ids), output))
        return Generation(output, tuple(-0.1 * (i + 1) for i in range(len(output))), 0, "stop" if ended else "length")


def user(chance):
    return {"role": "user", "content": chance.choice(TEXTS)}


def rewritten(chance, messages):
    """What agents do to their history between two calls."""
    messages = copy.deepcopy(messages)
    act = chance.choice(["strip", "edit", "truncate", "compact", "system", "anew"])
    place = chance.randrange(len(messages))
    if act == "strip":
        for message in messages:
            message.pop("reasoning_content", None)
    elif act == "edit" and messages[place]["role"] != "tool":
        messages[place] = {"role": messages[place]["role"], "content": chance.choice(TEXTS)}
    elif act == "truncate":
        messages = messages[place:]
    elif act == "compact":
        messages = [{"role": "user", "content": "In short: 4."}, *messages[place:]]
    elif act == "system":
        messages = [SYSTEM, *messages] if messages[0] != SYSTEM else messages[1:]
    return [user(chance)] if act == "anew" else messages


async def agent(chance, tracker, name, others):
    """Some calls of one agent; `others` are the histories that all agents have left behind."""
    for _ in range(chance.choice([0, 0, 10])):
        await asyncio.sleep(0)
    messages = [SYSTEM, user(chance)] if chance.randrange(2) else [user(chance)]
    if others and chance.randrange(2):
        messages = [*chance.choice(others), user(chance)]  # a sub-agent that is told everything
    tools = TOOLS if chance.randrange(3) else []
    for _ in range(chance.randint(1, 8)):
        request = ChatRequest(
            messages,
            tools if chance.randrange(8) else [],
            temperature=chance.choice([None, None, 0.0]),
            retry=chance.randrange(6) == 0,
        )
        number = chance.choice([1, 1, 1, 2])
        answers = await tracker.choices(name, request, number, trainable=chance.randrange(5) > 0)
        answer = chance.choice(answers).message
        if chance.randrange(8) == 0:
            continue  # the same request again
        results = [
            {"role": "tool", "tool_call_id": call["id"], "content": chance.choice(TEXTS)}
            for call in answer.get("tool_calls", ())
        ]
        messages = [*messages, answer, *results, *([user(chance)] if chance.randrange(3) or not results else [])]
        others.append(messages)
        if chance.randrange(5) == 0:
            messages = rewritten(chance, messages)
        elif chance.randrange(6) == 0:
            messages = [*chance.choice(others), user(chance)]


def calls_of(turns):
    return [
        Call(
            turn.agent,
            tuple(turn.prompt_ids),
            tuple(turn.output_ids),
            excluded=turn.excluded,
            fork=turn.fork,
            exact=turn.exact,
        )
        for turn in turns
    ]


async def play(chance, chat_format):
    policy = AnyTokens(chance, chat_format)
    tracker = ContextTracker(policy, chat_format, Sampling(64), max_turns=1000, seed=0)
    others = []
    agents = [agent(chance, tracker, name, others) for name in "abc"[: chance.randint(1, 3)]]
    await asyncio.gather(*agents)
    return policy, tracker


@pytest.mark.parametrize("template", ["qwen3", "chat_format"])
@settings(max_examples=HISTORIES)
@given(chance=st.randoms(use_true_random=False))
def test_the_tracker_records_what_the_engine_did_and_trains_it_once(template, chance, chat_format, qwen3):
    form = {"qwen3": qwen3, "chat_format": chat_format}[template]
    policy, tracker = asyncio.run(play(chance, form))
    recorded = [(tuple(turn.prompt_ids), tuple(turn.output_ids)) for turn in tracker.turns]
    assert Counter(recorded) == Counter(policy.log)
    history = calls_of(tracker.turns)
    assert [facts(line) for line in tracker.timelines()] == rows(history)
    assert tracker.unique_tokens == len({c.tokens[: i + 1] for c in history for i in range(len(c.tokens))})
    episode = Episode(
        "e0",
        Task("t", "q"),
        tracker.turns,
        tracker.timelines(),
        StopReason.COMPLETED,
        None,
        Verdict(1.0),
        unique_tokens=tracker.unique_tokens,
    )
    check_samples([episode], [history], chance.choice(AGGREGATIONS))


def test_random_agents_do_all_that_they_should(chat_format):
    """Otherwise the test above would prove less than it says."""
    trackers = [asyncio.run(play(Random(seed), chat_format))[1] for seed in range(60)]
    turns = [turn for tracker in trackers for turn in tracker.turns]
    lines = [line for tracker in trackers for line in tracker.timelines()]
    assert {turn.excluded for turn in turns} == {None, "frozen", "greedy", "retried"}
    assert {turn.finish_reason for turn in turns} == {"stop", "length"}
    assert {line.fork for line in lines} >= {None, "best_of_n", "other_agent", "reasoning_stripped", "tools_changed"}
    assert sum(len(line.spans) > 2 for line in lines) > 30
    assert any(span.shared for line in lines for span in line.spans)
