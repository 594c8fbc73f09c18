"""The openai package, the installed version: `make test-clients` runs this with the oldest and the newest."""

import asyncio
import json

import openai
import pytest
from pydantic import BaseModel

HI = [{"role": "user", "content": "Hi"}]
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "strict": True,
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}
ANSWERS = [
    '<think>\nI add.\n</think>\n\n<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>',
    "It is 5.",
]


def run_tools(message):
    """The tool messages that answer the calls of `message`."""
    results = []
    for call in message.tool_calls or ():
        arguments = json.loads(call.function.arguments)
        results.append({"role": "tool", "tool_call_id": call.id, "content": str(arguments["a"] + arguments["b"])})
    return results


def sync_agent(url):
    with openai.OpenAI(base_url=url, api_key="x") as client:
        messages = [{"role": "user", "content": "2 + 3?"}]
        while True:
            message = client.chat.completions.create(model="m", messages=messages, tools=[ADD]).choices[0].message
            messages += [message, *run_tools(message)]
            if not message.tool_calls:
                return message.content


async def async_agent(url):
    async with openai.AsyncOpenAI(base_url=url, api_key="x") as client:
        messages = [{"role": "user", "content": "2 + 3?"}]
        while True:
            answer = await client.chat.completions.create(model="m", messages=messages, tools=[ADD])
            message = answer.choices[0].message
            messages += [message.model_dump(), *run_tools(message)]
            if not message.tool_calls:
                return message.content


async def streaming_agent(url):
    async with openai.AsyncOpenAI(base_url=url, api_key="x") as client:
        messages = [{"role": "user", "content": "2 + 3?"}]
        while True:
            async with client.chat.completions.stream(model="m", messages=messages, tools=[ADD]) as stream:
                events = [event.type async for event in stream]
                message = (await stream.get_final_completion()).choices[0].message
            assert events[0] == "chunk"
            messages += [message.to_dict(), *run_tools(message)]
            if not message.tool_calls:
                return message.content


async def in_a_thread(url):
    return await asyncio.to_thread(sync_agent, url)


@pytest.mark.parametrize("agent", [in_a_thread, async_agent, streaming_agent])
async def test_an_agent_with_a_tool_is_one_timeline(capture, agent):
    episode = capture(ANSWERS)
    assert await agent(episode.url) == "It is 5."
    (timeline,) = episode.timelines(ANSWERS)
    assert (len(timeline.spans), timeline.fork) == (2, None)


class Sum(BaseModel):
    a: int
    b: int


async def test_structured_output_is_parsed_and_its_opening_brace_is_not_trained(capture):
    rest = '"a": 2, "b": 3}'
    episode = capture([rest])
    async with openai.AsyncOpenAI(base_url=episode.url, api_key="x") as client:
        messages = [{"role": "user", "content": "2 + 3?"}]
        answer = await client.chat.completions.parse(model="m", messages=messages, response_format=Sum)
    assert answer.choices[0].message.parsed == Sum(a=2, b=3)
    (timeline,) = episode.timelines([rest])
    assert episode.chat_format.decode(timeline.token_ids[: timeline.spans[0].start]).endswith("{")


async def test_a_forced_tool_call_is_parsed_and_its_start_is_not_trained(capture):
    rest = ' {"a": 2, "b": 3}}\n</tool_call>'
    episode = capture([rest])
    async with openai.AsyncOpenAI(base_url=episode.url, api_key="x") as client:
        answer = await client.chat.completions.create(
            model="m",
            messages=[{"role": "user", "content": "2 + 3?"}],
            tools=[ADD],
            tool_choice={"type": "function", "function": {"name": "add"}},
        )
    (call,) = answer.choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("add", {"a": 2, "b": 3})
    assert answer.choices[0].finish_reason == "tool_calls"
    episode.timelines([rest])


@pytest.mark.fault(
    "The OpenAI-compatible endpoint",
    "an agent rewrites its history",
    "a new timeline with the cause; every sampled token is trained once",
)
async def test_a_history_that_is_rewritten_is_a_new_timeline_with_the_cause(capture):
    episode = capture(["five", "5"])
    question = {"role": "user", "content": "2 + 3?"}
    async with openai.AsyncOpenAI(base_url=episode.url, api_key="x") as client:
        await client.chat.completions.create(model="m", messages=[question])
        edited = [question, {"role": "assistant", "content": "six"}, {"role": "user", "content": "Are you sure?"}]
        await client.chat.completions.create(model="m", messages=edited)
    assert [timeline.fork for timeline in episode.timelines(["five", "5"])] == [None, "history_edited"]


@pytest.mark.fault(
    "The OpenAI-compatible endpoint", "a real OpenAI client makes a mistake", "it raises the error of its own package"
)
async def test_errors_are_the_clients_own(capture):
    episode = capture([])
    async with openai.AsyncOpenAI(base_url=episode.url, api_key="x") as client:
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "?"}], logit_bias={"1": 1}
            )
        assert (refused.value.param, refused.value.code) == ("logit_bias", "unsupported_parameter")
        assert [model.id async for model in client.models.list()] == ["agent"]
        assert (await client.models.retrieve("agent")).owned_by == "astune"
        with pytest.raises(openai.BadRequestError, match="maximum context length is 4096 tokens") as refused:
            await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "too long " * 9000}])
        assert refused.value.code == "context_length_exceeded"
