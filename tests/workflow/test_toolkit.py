"""The tools of an environment in the hands of real AgentScope agents, of whichever line is installed."""

import json
from importlib import metadata

import pytest

from astune.clients.env_service import EnvInstance, EnvServiceClient
from astune.errors import EnvServiceError, WorkflowError
from astune.monitor.jsonl import plain
from astune.testing import EnvServer
from astune.workflow.environment import TaskEnvironment

pytest.importorskip("agentscope")
from tests.environment.corridor import Corridor

LINE = int(metadata.version("agentscope").split(".")[0])
SCHEMA_OF_NO_ARGUMENTS = {"type": "object", "properties": {}}


def call(name, **arguments):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


RIGHT = call("move", direction="right")


@pytest.fixture
async def make_env(make_tuner):
    """`make_env(answers)` gives (environment, tuner, tracker, metrics of the service)."""
    with EnvServer([Corridor(length=2)]) as server:

        async def make(answers):
            tuner, tracker, _ = make_tuner(answers)
            client = EnvServiceClient(server.url, retries=0)
            first = await client.create("corridor", "a", "i")
            tuner.enter(TaskEnvironment(client, EnvInstance(server.url, "i"), first, tuner.failures))
            return tuner.environment, tuner, tracker

        yield make


async def reply_of(tuner, **options):
    """What an agent with the environment's toolkit replies to its question."""
    env = tuner.environment
    if LINE == 1:
        from agentscope.agent import ReActAgent
        from agentscope.formatter import OpenAIChatFormatter
        from agentscope.message import Msg

        agent = ReActAgent(
            name="walker",
            sys_prompt=env.messages[0]["content"],
            model=tuner.model(),
            formatter=OpenAIChatFormatter(),
            toolkit=env.toolkit(),
            **options,
        )
        agent.set_console_output_enabled(False)
        return (await agent(Msg("user", env.query, "user"))).get_text_content()
    from agentscope.agent import Agent
    from agentscope.message import UserMsg

    from astune.workflow.agentscope import training_defaults

    prompt = env.messages[0]["content"]
    toolkit = env.toolkit()
    agent = Agent(name="walker", system_prompt=prompt, model=tuner.model(), toolkit=toolkit, **training_defaults())
    return (await agent.reply(UserMsg("user", env.query))).get_text_content()


def results(turn):
    return [message["content"] for message in plain(turn.messages) if message["role"] == "tool"]


def text_of(result):
    return result if isinstance(result, str) else "".join(part["text"] for part in result)


async def test_the_model_sees_the_tools_as_the_environment_gave_them(make_env):
    env, tuner, tracker = await make_env([RIGHT, "Enough."])
    assert await reply_of(tuner) == "Enough."
    move, look, wait = plain(env.tools)
    wait["function"]["parameters"] = SCHEMA_OF_NO_ARGUMENTS
    for turn in tracker.turns:
        assert plain(turn.tools) == [move, look, wait]
    assert look["function"]["parameters"]["required"] == []
    assert [text_of(result) for result in results(tracker.turns[-1])] == ["place 1"]
    assert (env.done, env.reward) == (False, 0.5)


async def test_calls_of_one_message_are_steps_in_order_and_after_the_end_none_reaches_the_service(make_env):
    env, tuner, tracker = await make_env([f"{RIGHT}\n{call('look')}\n{RIGHT}\n{RIGHT}", RIGHT, "Done."])
    assert await reply_of(tuner, **({"parallel_tool_calls": True} if LINE == 1 else {})) == "Done."
    over = "The episode is over."
    said = [text_of(result) for result in results(tracker.turns[-1])]
    assert said == ["place 1", "place 1", f"place 2\n{over}", over, over]
    assert (await EnvServiceClient(env.instance.url).info(env.instance))["steps"] == 3
    assert env.reward == 1.5 and tuner.failures == []


@pytest.mark.fault(
    "Tools and environments", "an agent swallows the failure of its environment", "it ends at its next model call"
)
async def test_a_service_that_fails_ends_the_agent_at_its_next_model_call(make_env):
    env, tuner, tracker = await make_env([call("move", direction="right"), call("look"), "Never said."])
    await EnvServiceClient(env.instance.url).release(env.instance)
    with pytest.raises(Exception, match="has failed before"):
        await reply_of(tuner)
    assert len(tracker.turns) == 1
    assert isinstance(tuner.failures[0], EnvServiceError)
    with pytest.raises(EnvServiceError, match="failed before"):
        await env.step("right")


async def test_an_environment_without_tools_has_no_toolkit(make_env):
    env, _, _ = await make_env([])
    env.tools = ()
    with pytest.raises(WorkflowError, match=r"no tools.*tuner\.environment\.step"):
        env.toolkit()
