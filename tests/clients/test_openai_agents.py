"""The OpenAI Agents SDK in both of its modes: the Responses API, its default, and chat completions."""

import openai
import pytest

pytest.importorskip("agents", reason="make test-clients installs it")

from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, RunConfig, Runner, function_tool
from pydantic import BaseModel

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>'
THOUGHT_CALL = "<think>\nI add.\n</think>\n\n" + CALL
UNTRACED = RunConfig(tracing_disabled=True)


@function_tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class Sum(BaseModel):
    a: int
    b: int


@pytest.fixture
async def open_client():
    """`open_client(episode)` gives a client that is closed after the test."""
    clients = []

    def begin(episode):
        clients.append(openai.AsyncOpenAI(base_url=episode.url, api_key="x"))
        return clients[-1]

    yield begin
    for client in clients:
        await client.close()


@pytest.fixture(params=[OpenAIResponsesModel, OpenAIChatCompletionsModel])
def model(request, open_client):
    """`model(episode)` gives a model of either mode."""
    return lambda episode: request.param("m", open_client(episode))


@pytest.mark.parametrize("call", [CALL, THOUGHT_CALL, f"{CALL}\n{CALL}"])
async def test_an_agent_with_a_tool_is_one_timeline(capture, model, call):
    answers = [call, "It is 5."]
    episode = capture(answers)
    agent = Agent(name="adder", instructions="You add.", model=model(episode), tools=[add])
    result = await Runner.run(agent, "2 + 3?", run_config=UNTRACED)
    assert result.final_output == "It is 5."
    (timeline,) = episode.timelines(answers)
    assert (len(timeline.spans), timeline.fork) == (2, None)


async def test_a_streamed_agent_with_a_tool_is_one_timeline(capture, model):
    answers = [THOUGHT_CALL, "It is 5."]
    episode = capture(answers)
    agent = Agent(name="adder", instructions="You add.", model=model(episode), tools=[add])
    result = Runner.run_streamed(agent, "2 + 3?", run_config=UNTRACED)
    kinds = {event.type async for event in result.stream_events()}
    assert {"raw_response_event", "run_item_stream_event"} <= kinds
    assert result.final_output == "It is 5."
    (timeline,) = episode.timelines(answers)
    assert len(timeline.spans) == 2


async def test_a_conversation_over_two_runs_is_one_timeline(capture, model):
    answers = [CALL, "It is 5.", "Yes."]
    episode = capture(answers)
    agent = Agent(name="adder", instructions="You add.", model=model(episode), tools=[add])
    first = await Runner.run(agent, "2 + 3?", run_config=UNTRACED)
    again = [*first.to_input_list(), {"role": "user", "content": "Sure?"}]
    assert (await Runner.run(agent, again, run_config=UNTRACED)).final_output == "Yes."
    (timeline,) = episode.timelines(answers)
    assert len(timeline.spans) == 3


async def test_a_handoff_is_a_new_timeline_because_the_system_message_is_another(capture, model):
    answers = ['<tool_call>\n{"name": "transfer_to_adder", "arguments": {}}\n</tool_call>', "It is 5."]
    episode = capture(answers)
    adder = Agent(name="adder", instructions="You add.", model=model(episode))
    first = Agent(name="front", instructions="You pass on.", model=model(episode), handoffs=[adder])
    result = await Runner.run(first, "2 + 3?", run_config=UNTRACED)
    assert (result.final_output, result.last_agent.name) == ("It is 5.", "adder")
    assert [timeline.fork for timeline in episode.timelines(answers)] == [None, "system_changed"]


async def test_structured_output_is_forced_and_parsed(capture, model):
    episode = capture(['"a": 2, "b": 3}'])
    agent = Agent(name="adder", instructions="You add.", model=model(episode), output_type=Sum)
    result = await Runner.run(agent, "2 + 3?", run_config=UNTRACED)
    assert result.final_output == Sum(a=2, b=3)
    episode.timelines(['"a": 2, "b": 3}'])


async def test_with_tools_structured_output_leaves_the_choice_to_the_policy(capture, model):
    answers = [CALL, '{"a": 2, "b": 3}']
    episode = capture(answers)
    agent = Agent(name="adder", instructions="You add.", model=model(episode), tools=[add], output_type=Sum)
    result = await Runner.run(agent, "2 + 3?", run_config=UNTRACED)
    assert result.final_output == Sum(a=2, b=3)
    (timeline,) = episode.timelines(answers)
    assert len(timeline.spans) == 2


async def test_the_defaults_of_the_newest_models_are_accepted(capture, open_client):
    """Reasoning effort and verbosity, which the SDK sends for them."""
    episode = capture(["It is 5."])
    agent = Agent(name="adder", instructions="You add.", model=OpenAIResponsesModel("gpt-5", open_client(episode)))
    assert (await Runner.run(agent, "2 + 3?", run_config=UNTRACED)).final_output == "It is 5."
    episode.timelines(["It is 5."])


async def test_responses_kept_by_the_endpoint_are_gone_on_from(capture, open_client):
    answers = [CALL, "It is 5.", "Yes."]
    episode = capture(answers)
    model = OpenAIResponsesModel("m", open_client(episode))
    agent = Agent(name="adder", instructions="You add.", model=model, tools=[add])
    first = await Runner.run(agent, "2 + 3?", run_config=UNTRACED)
    await Runner.run(agent, "Sure?", previous_response_id=first.last_response_id, run_config=UNTRACED)
    (timeline,) = episode.timelines(answers)
    assert len(timeline.spans) == 3
