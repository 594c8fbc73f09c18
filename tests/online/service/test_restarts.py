"""A service that is stopped between any two calls goes on as one that never was."""

import asyncio
import copy
import itertools
from contextlib import AsyncExitStack
from datetime import datetime
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astune.config.schema import Config, ModelConfig
from astune.context_tracker.merge import TurnForest
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.online.service.serving import OnlineService
from astune.online.store.requests import load_conversation
from astune.testing import write_test_model_dir
from tests.online.service.conftest import Client, configured, scripted, user
from tests.store.databases import new_url

ANSWERS = [
    "Hello",
    "<think>\nHm.\n</think>\n\n4",
    '<tool_call>\n{"name": "add", "arguments": {"x":1}}\n</tool_call>',
    "",
]
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]


def next_request(chance, talks):
    """One of the talks goes on, as agents do it: with or without reasoning, with ids of calls of their own, from an
    earlier point, with another system message, cut short, or begun anew."""
    number = chance.randrange(3)
    messages = copy.deepcopy(talks[number])
    act = chance.choice(["on", "on", "on", "branch", "edit", "cut", "same", "system"])
    if act == "branch":
        messages = messages[: chance.randrange(len(messages) + 1)]
    elif act == "edit" and messages:
        place = chance.randrange(len(messages))
        if messages[place]["role"] == "user":
            messages[place] = user("edited")
    elif act == "cut":
        messages = messages[chance.randrange(len(messages) + 1) :]
    elif act == "system":
        messages = [{"role": "system", "content": chance.choice("st")}, *messages]
    for message in messages if chance.randrange(2) else ():
        message.pop("reasoning_content", None)
    calls = messages[-1].get("tool_calls") if messages else None
    if calls and act != "same":
        messages += [{"role": "tool", "tool_call_id": call["id"], "content": "1"} for call in calls]
    elif act != "same" or not messages:
        messages.append(user(chance.choice("ab")))
    body = {"messages": messages, "user": str(number)} | ({"tools": TOOLS} if chance.randrange(4) else {})
    body |= {"stop": ["ll"]} if chance.randrange(5) == 0 else {}
    body |= {"n": 2} if chance.randrange(6) == 0 else {}
    headers = {"X-ASTune-Conversation": "named"} if number == 2 else {}
    return number, body, headers | ({"x-stainless-retry-count": "1"} if chance.randrange(6) == 0 else {})


async def play(chance, url, make_service, lives):
    """The same calls for the same `chance`; `lives` processes take turns, or with 0 a new one answers each call. What
    the model was sent, and what the store has at the end."""
    number, policies, ids, talks = itertools.count(), [], itertools.count(), [[], [], []]
    seen = []

    def answers(prompt):
        return ANSWERS[sum(prompt.encode()) % len(ANSWERS)]

    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(make_service(url, answers, policies, ids)) for _ in range(lives)]
        for _ in range(chance.randint(1, 9)):
            talk, body, headers = next_request(chance, talks)
            if lives:
                reply = await clients[next(number) % lives].chat(**body, headers=headers)
            else:
                async with make_service(url, answers, policies, ids) as client:
                    reply = await client.chat(**body, headers=headers)
            seen.append(reply["conversation"])
            talks[talk] = [*body["messages"], chance.choice(reply["choices"])["message"]]
        async with make_service(url, answers) as client:
            with client.service.database.reading() as connection:
                loaded = {each: load_conversation(connection, each) for each in sorted(set(seen))}
    kept = {
        conversation: [
            (request.msg_id, request.exchange, request.follows, request.seen, request.messages, request.turns)
            for request in requests
        ]
        for conversation, requests in loaded.items()
    }
    lines = {
        conversation: TurnForest(each.turn for request in requests for each in request.turns).timelines()
        for conversation, requests in loaded.items()
    }
    return kept, lines


@pytest.mark.fault(
    "Online training", "the service is stopped between two calls", "the next one goes on from the tokens"
)
@pytest.mark.parametrize("lives", [0, 2], ids=["a new process for each call", "two processes in turn"])
@settings(max_examples=6)
@given(seed=st.integers(0, 2**32))
def test_prompts_forks_and_timelines_are_those_of_a_service_that_was_never_stopped(
    lives, seed, tmp_path_factory, make_service
):
    async def both():
        folder = tmp_path_factory.mktemp("lives")
        once = await play(Random(seed), new_url("sqlite", folder), make_service, 1)
        again = await play(Random(seed), new_url("sqlite", folder), make_service, lives)
        assert again == once

    asyncio.run(both())


async def test_a_conversation_keeps_the_day_on_which_it_began(tmp_path):
    model_dir = write_test_model_dir(tmp_path / "dated")
    template = model_dir / "chat_template.jinja"
    template.write_text("{{ strftime_now('%d %b %Y') }}\n" + template.read_text())
    dated, url, policies = ChatFormat.load(model_dir), new_url("sqlite", tmp_path), []

    async def prompts(days, model=None):
        """The prompts of one conversation, each request a day after the other and answered by a new process."""
        messages = []
        for day in days:
            config = configured(url)
            config = Config(astune=config.astune.model_copy(update={"model": model or config.astune.model}))
            clock = itertools.repeat(datetime(2026, 1, day).timestamp()).__next__
            service = OnlineService(config, scripted(dated, lambda prompt: "4", policies), clock=clock)
            messages.append(user(f"{day}?"))
            async with Client(service) as client:
                reply = await client.chat(messages, user=str(days))
            messages.append(reply["choices"][0]["message"])
            service.close()
        return [dated.decode(prompt) for policy in policies[-len(days) :] for prompt, _ in policy.calls]

    first, second = await prompts([1, 2])
    assert first.startswith("01 Jan 2026") and second.startswith(first)
    assert (await prompts([3]))[0].startswith("03 Jan 2026")
    assert (await prompts([4], ModelConfig(clock=datetime(1999, 1, 1))))[0].startswith("01 Jan 1999")
