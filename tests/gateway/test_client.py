from __future__ import annotations

import asyncio
import math
from enum import Enum
from typing import Any

import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionMessage

from astune.gateway.app import OpenAIApp
from astune.gateway.client import in_process_client


async def test_a_call_needs_no_thread_so_calls_arrive_in_the_order_of_the_agents_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a call in process went through a thread")

    app = OpenAIApp()
    client = in_process_client(app, "nobody")
    monkeypatch.setattr(asyncio.get_running_loop(), "run_in_executor", refuse)
    with pytest.raises(openai.APIStatusError):
        await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])


# --- straight to the endpoint, or over HTTP ----------------------------------------------------------------------

CALL = {"id": "a", "type": "function", "function": {"name": "add", "arguments": '{"x": 1}'}}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
MESSAGES = st.sampled_from(
    [
        {"role": "system", "content": "You add."},
        {"role": "user", "content": "Hi"},
        {"role": "user", "content": [{"type": "text", "text": "Grüße"}]},
        {"role": "assistant", "content": "Hello"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "a", "content": "1"},
        {"role": "nobody", "content": "Hi"},
        {"role": "user"},
        ChatCompletionMessage(role="assistant", content="Hello again"),
    ]
)
KIND = Enum("KIND", {"A": "a"}, type=str)
# fmt: off
ODD = st.sampled_from([
    None, "", "a", "\ud83d", 0, 1, 2**70, -1, 0.5, math.nan, math.inf, True, [], ["a"], {}, {"a": 1}, {1: "a"}, [TOOL],
    (TOOL,), {"type": "json_object"}, {"a": (1, {"b": None})}, [[[[[]]]]], KIND.A,
])
FIELDS = st.dictionaries(st.sampled_from([
    "n", "stop", "max_tokens", "temperature", "top_p", "seed", "logprobs", "tools", "tool_choice", "metadata", "model",
    "parallel_tool_calls", "response_format", "return_token_ids", "user", "top_k", "unheard_of",
]), ODD, max_size=3)
# fmt: on
Outcome = tuple[list[object], list[tuple[int, ...]]]


async def outcome(make_tuner: Any, bodies: list[dict[str, Any]], **over_http: Any) -> Outcome:
    """What a client is given, request by request, and the prompts that the policy saw."""
    tuner, _, policy = make_tuner(
        lambda prompt: 'Well: <tool_call>\n{"name": "add", "arguments": {"x":1}}\n</tool_call>'
    )
    client = tuner.openai_client("solver")
    told = [await answer_to(client, body, **over_http) for body in bodies]
    return told, [prompt for prompt, _ in policy.calls]


async def answer_to(client: openai.AsyncOpenAI, body: dict[str, Any], **over_http: Any) -> object:
    try:
        answer = await client.chat.completions.create(**body, **over_http)
    except openai.APIStatusError as error:
        return type(error), error.status_code, str(error), error.body, error.response.headers["x-should-retry"]
    except (TypeError, ValueError) as error:
        return type(error)
    told = answer.model_copy(update={"id": "", "created": 0, "choices": [without_ids(each) for each in answer.choices]})
    assert told.model_dump() == ChatCompletion.construct(**told.model_dump()).model_dump()
    return told


def without_ids(choice: Any) -> Any:
    """They begin with a hash of the endpoint's secret."""
    for call in choice.message.tool_calls or ():
        call.id = call.id.rpartition("_")[2]
    return choice


def body_of(messages: list[Any], fields: dict[str, Any]) -> dict[str, Any]:
    return {"messages": messages, **({"extra_body": fields} if {"top_k", "unheard_of"} & set(fields) else fields)}


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.builds(body_of, st.lists(MESSAGES, max_size=4), FIELDS), min_size=1, max_size=3))
async def test_calls_that_go_straight_give_what_they_give_over_http(
    make_tuner: Any, bodies: list[dict[str, Any]]
) -> None:
    straight = await outcome(make_tuner, bodies)
    assert straight == await outcome(make_tuner, bodies, extra_headers={"x-anything": "over HTTP"})


async def test_what_an_agent_changes_in_its_messages_is_seen_and_changes_no_earlier_call(make_tuner: Any) -> None:
    tuner, tracker, _ = make_tuner(lambda prompt: "4")
    create, messages = tuner.openai_client("solver").chat.completions.create, [{"role": "user", "content": "2 + 2?"}]
    await create(model="m", messages=messages)
    messages[0]["content"] = "2 + 3?"
    await create(model="m", messages=messages)
    assert [turn.messages[0]["content"] for turn in tracker.turns] == ["2 + 2?", "2 + 3?"]


@pytest.mark.parametrize("over_http", [{}, {"stream": True}])
async def test_a_blocking_client_gives_in_a_thread_what_the_async_one_gives(
    make_tuner: Any, over_http: dict[str, Any]
) -> None:
    tuner, tracker, _ = make_tuner(lambda prompt: "4")
    body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "2 + 2?"}], **over_http}

    def told(answer: Any) -> Any:
        return [each.choices for each in answer] if over_http else answer.choices

    blocking = tuner.openai_client("solver", sync=True)
    answer = await asyncio.to_thread(lambda: told(blocking.chat.completions.create(**body)))
    expected = await tuner.openai_client("solver").chat.completions.create(**body)
    assert answer == ([each.choices async for each in expected] if over_http else expected.choices)
    assert len(tracker.turns) == 2
    with pytest.raises(openai.BadRequestError, match="messages"):
        await asyncio.to_thread(blocking.chat.completions.create, **body | {"messages": []})
    blocking.close()
