"""The anthropic package: agents with a tool, structured output, and errors that are its own."""

import asyncio

import pytest

pytest.importorskip("anthropic", reason="make test-clients installs it")

import anthropic
from anthropic import beta_async_tool
from pydantic import BaseModel

ADD = {
    "name": "add",
    "description": "Add two numbers.",
    "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
}
ANSWERS = [
    '<think>\nI add.\n</think>\n\n<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>',
    "It is 5.",
]
QUESTION = {"role": "user", "content": "2 + 3?"}
ASKED = {"model": "m", "max_tokens": 256, "system": "You add.", "tools": [ADD]}


def text_of(message):
    return "".join(block.text for block in message.content if block.type == "text")


def go_on(messages, message):
    """The messages with an answer and the results of its calls."""
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": str(block.input["a"] + block.input["b"])}
        for block in message.content
        if block.type == "tool_use"
    ]
    return [*messages, {"role": "assistant", "content": message.content}, {"role": "user", "content": results}]


def sync_agent(url):
    with anthropic.Anthropic(base_url=url, api_key="x") as client:
        messages = [QUESTION]
        while (message := client.messages.create(messages=messages, **ASKED)).stop_reason == "tool_use":
            messages = go_on(messages, message)
        return text_of(message)


async def in_a_thread(url):
    return await asyncio.to_thread(sync_agent, url)


async def streaming_agent(url):
    async with anthropic.AsyncAnthropic(base_url=url, auth_token="x") as client:
        messages = [QUESTION]
        while True:
            async with client.messages.stream(messages=messages, **ASKED) as stream:
                said = "".join([text async for text in stream.text_stream])
                message = await stream.get_final_message()
            if message.stop_reason != "tool_use":
                assert said == text_of(message)
                return said
            messages = go_on(messages, message)


async def tool_runner(url):
    @beta_async_tool
    async def add(a: int, b: int) -> str:
        """Add two numbers."""
        return str(a + b)

    async with anthropic.AsyncAnthropic(base_url=url.removesuffix("/v1"), api_key="x") as client:
        asked = {name: value for name, value in ASKED.items() if name != "tools"}
        runner = client.beta.messages.tool_runner(messages=[QUESTION], tools=[add], **asked)
        return text_of(await runner.until_done())


@pytest.mark.parametrize("agent", [in_a_thread, streaming_agent, tool_runner])
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
    async with anthropic.AsyncAnthropic(base_url=episode.url, api_key="x") as client:
        answer = await client.messages.parse(model="m", max_tokens=99, messages=[QUESTION], output_format=Sum)
    assert answer.parsed_output == Sum(a=2, b=3)
    (timeline,) = episode.timelines([rest])
    assert episode.chat_format.decode(timeline.token_ids[: timeline.spans[0].start]).endswith("{")


@pytest.mark.fault(
    "The OpenAI-compatible endpoint",
    "a real client of Anthropic makes a mistake",
    "it raises the error of its own package",
)
async def test_errors_are_the_clients_own(capture):
    episode = capture([])
    async with anthropic.AsyncAnthropic(base_url=episode.url, api_key="x") as client:
        with pytest.raises(anthropic.BadRequestError, match=r"top_k.*Set astune.rollout.top_k") as refused:
            await client.messages.create(model="m", max_tokens=9, messages=[QUESTION], extra_body={"top_k": 5})
        assert (refused.value.type, refused.value.error_code) == ("invalid_request_error", "unknown_parameter")
        long = [{"role": "user", "content": "too long " * 9000}]
        with pytest.raises(anthropic.BadRequestError, match="the prompt is too long") as refused:
            await client.messages.create(model="m", max_tokens=9, messages=long)
        assert refused.value.error_code == "context_length_exceeded"
        assert (await client.messages.count_tokens(model="m", messages=long)).input_tokens > 9000
        episode.tuner.close()
        with pytest.raises(anthropic.NotFoundError, match="its episode is over"):
            await client.messages.create(model="m", max_tokens=9, messages=[QUESTION])
