"""LangChain's ChatOpenAI, alone and under LangGraph's ready-made agent."""

import pytest

pytest.importorskip("langchain_openai", reason="make test-clients installs it")

from langchain.agents import create_agent
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

ANSWERS = ['I add.\n<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>', "It is 5."]


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class Sum(BaseModel):
    """A sum."""

    a: int
    b: int


def model(episode, **options):
    return ChatOpenAI(model="m", base_url=episode.url, api_key="x", **options)


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_model_with_bound_tools_is_one_timeline(capture, streaming):
    episode = capture(ANSWERS)
    chat = model(episode, streaming=streaming).bind_tools([add])
    messages = [HumanMessage("2 + 3?")]
    messages.append(await chat.ainvoke(messages))
    (call,) = messages[-1].tool_calls
    messages.append(ToolMessage(str(add.invoke(call["args"])), tool_call_id=call["id"]))
    assert (await chat.ainvoke(messages)).content == "It is 5."
    (timeline,) = episode.timelines(ANSWERS)
    assert len(timeline.spans) == 2


@pytest.mark.parametrize("streaming", [False, True])
async def test_an_agent_graph_is_one_timeline(capture, streaming):
    episode = capture(ANSWERS)
    agent = create_agent(model(episode, streaming=streaming), [add], system_prompt="You add.")
    state = await agent.ainvoke({"messages": [HumanMessage("2 + 3?")]})
    assert state["messages"][-1].content == "It is 5."
    (timeline,) = episode.timelines(ANSWERS)
    assert (len(timeline.spans), timeline.fork) == (2, None)


async def test_two_conversations_of_one_agent_are_two_timelines(capture):
    episode = capture(["one", "two"])
    agent = create_agent(model(episode), [add], system_prompt="You add.")
    for question in ("1?", "2?"):
        await agent.ainvoke({"messages": [HumanMessage(question)]})
    forks = [timeline.fork for timeline in episode.timelines(["one", "two"])]
    assert forks == [None, "new_conversation"]


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("json_schema", '"a": 2, "b": 3}'),
        ("json_mode", '"a": 2, "b": 3}'),
        ("function_calling", ' {"a": 2, "b": 3}}\n</tool_call>'),
    ],
)
async def test_structured_output_is_forced_and_parsed(capture, method, answer):
    episode = capture([answer])
    chat = model(episode).with_structured_output(Sum, method=method)
    assert await chat.ainvoke("2 + 3? Answer in JSON.") == Sum(a=2, b=3)
    episode.timelines([answer])


async def test_a_prompt_that_is_too_long_is_langchains_own_overflow(capture):
    with pytest.raises(ContextOverflowError, match="maximum context length is 4096 tokens"):
        await model(capture([])).ainvoke([HumanMessage("too long " * 9000)])
