"""`tuner.tools` in whole episodes: in an agent's hands, over an endpoint, and what failures do."""

import asyncio
import json
from importlib import metadata

import pytest

from astune.algorithm.credit import EpisodeCredit
from astune.config.schema import RolloutConfig
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.monitor.episodes import EpisodeRecord, episode_from_row, episode_to_row
from astune.rollout.episode import run_episode
from astune.rollout.metrics import tool_metrics
from astune.rollout.setup import RolloutSetup
from astune.testing import ScriptedPolicy, write_test_model_dir
from astune.types import Sampling, StopReason, ToolUse, WorkflowOutput
from astune.workflow.workflow_base import as_workflow
from tests.tools.conftest import TASK, notes, servers_of

pytest.importorskip("mcp")
LINE = int(metadata.version("agentscope").split(".")[0])


def call(name, **arguments):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@pytest.fixture(scope="module")
def chat_format(tmp_path_factory):
    return ChatFormat.load(write_test_model_dir(tmp_path_factory.mktemp("model")))


@pytest.fixture
def play(chat_format):
    """`await play(workflow, answers, **on_failure)` gives the episode, with servers of its own."""

    async def run(workflow, answers=("4",), servers=None, **on_failure):
        policy = ScriptedPolicy(answers, chat_format, context_length=8192)
        tools = servers_of(servers or notes(isolation="episode"), **on_failure)
        setup = RolloutSetup(policy, chat_format, as_workflow(workflow), None, RolloutConfig(), 30.0, tools=tools)
        async with setup.open():
            return await run_episode(TASK, setup, episode_id="e/1", seed=1, sampling=Sampling(max_tokens=256))

    return run


async def loop(task, tuner):
    """An agent of no framework: calls what the model calls, until it calls nothing."""
    client, messages = tuner.openai_client(), [{"role": "user", "content": task.query}]
    while True:
        answer = await client.chat.completions.create(model="m", messages=messages, tools=tuner.tools.openai)
        said = answer.choices[0].message
        messages.append(said.model_dump(exclude_none=True))
        if not said.tool_calls:
            return WorkflowOutput(answer=said.content, reward=1.0)
        for each in said.tool_calls:
            text = await tuner.tools.call(each.function.name, json.loads(each.function.arguments))
            messages.append({"role": "tool", "tool_call_id": each.id, "content": text})


async def test_calls_are_counted_by_tool_and_cause_and_kept(play):
    answers = [call("show"), call("show"), call("add"), call("refuse"), call("shwo"), call("much", characters=300)]
    episode = await play(loop, [*answers, "done"], notes(longest_result=200))
    assert episode.stop_reason is StopReason.COMPLETED
    assert {name: (use.calls, use.errors, use.causes) for name, use in episode.tools.items()} == {
        "show": (2, 0, {"repeated": 1}),
        "add": (1, 1, {"malformed": 1, "cut_short": 1}),
        "refuse": (1, 1, {"said_no": 1}),
        "(no such tool)": (1, 1, {"unknown": 1}),
        "much": (1, 0, {"cut_short": 1}),
    }
    counted = tool_metrics([episode])
    assert {name: value for name, value in counted.items() if name.startswith("tools/causes/")} == {
        "tools/causes/repeated/show": 1.0,
        "tools/causes/malformed/add": 1.0,
        "tools/causes/cut_short/add": 1.0,
        "tools/causes/said_no/refuse": 1.0,
        "tools/causes/unknown/(no such tool)": 1.0,
        "tools/causes/cut_short/much": 1.0,
    }
    row = json.loads(json.dumps(episode_to_row(EpisodeRecord(1, "train", episode))))
    assert episode_from_row(row).episode.tools == episode.tools


@pytest.mark.fault(
    "Tools and environments",
    "the MCP server of an episode dies",
    "the episode ends as an error of its environment, without a reward, and is not trained",
)
async def test_a_tool_that_breaks_ends_the_episode_even_if_the_agent_goes_on(play):
    episode = await play(loop, [call("die"), "all is well"])
    assert (episode.stop_reason, episode.verdict, len(episode.turns)) == (StopReason.ERROR, None, 1)
    assert (episode.error.stage, episode.error.kind) == ("environment", "ToolServerError")
    assert "astune.tools.on_failure.broke: end" in episode.error.message

    async def ignores(task, tuner):
        await tuner.tools.call("die")
        return WorkflowOutput(answer="fine", reward=1.0)

    episode = await play(ignores)
    assert (episode.stop_reason, episode.verdict) == (StopReason.ERROR, None)
    assert episode.tools["die"].causes == {"broke": 1}


async def test_what_a_failure_does_is_an_option(play):
    answers = [call("refuse"), call("show"), "done"]
    episode = await play(loop, answers, said_no="no_credit")
    assert (episode.stop_reason, episode.no_credit) == (StopReason.COMPLETED, frozenset({0}))
    (line,) = episode.timelines
    assert EpisodeCredit(episode, 1.0, {}, {}).span_advantages(line) == (0.0, 1.0, 1.0)
    assert EpisodeCredit(episode, -1.0, {}, {}).span_advantages(line) == (-1.0, -1.0, -1.0)
    row = json.loads(json.dumps(episode_to_row(EpisodeRecord(1, "train", episode))))
    assert episode_from_row(row).episode.no_credit == episode.no_credit
    episode = await play(loop, answers, said_no="end")
    assert (episode.stop_reason, len(episode.turns)) == (StopReason.ERROR, 1)
    unread = call("show").replace("}\n", "\n")  # a brace is missing, so that the agent gets it as text
    episode = await play(loop, [call("add"), unread], malformed="no_credit")
    assert episode.no_credit == frozenset({0, 1})
    episode = await play(loop, [unread], malformed="end")
    assert episode.stop_reason is StopReason.ERROR and "no call could be read" in episode.error.message
    episode = await play(loop, [call("die"), "all is well"], broke="nothing")
    assert (episode.stop_reason, episode.reward) == (StopReason.COMPLETED, 1.0)


async def test_an_agent_of_agentscope_uses_the_toolkit(play):
    async def agent(task, tuner):
        if LINE == 1:
            from agentscope.agent import ReActAgent
            from agentscope.formatter import OpenAIChatFormatter
            from agentscope.message import Msg

            made = ReActAgent("n", "Note.", tuner.model(), OpenAIChatFormatter(), toolkit=tuner.tools.toolkit())
            made.set_console_output_enabled(False)
            reply = await made(Msg("user", task.query, "user"))
        else:
            from agentscope.agent import Agent
            from agentscope.message import UserMsg

            from astune.workflow.agentscope import training_defaults

            toolkit = tuner.tools.toolkit()
            made = Agent(name="n", system_prompt="Note.", model=tuner.model(), toolkit=toolkit, **training_defaults())
            reply = await made.reply(UserMsg("user", task.query))
        return WorkflowOutput(answer=reply.get_text_content(), reward=1.0)

    episode = await play(agent, [call("add", note="tea"), call("refuse"), "done"])
    assert (episode.stop_reason, episode.error) == (StopReason.COMPLETED, None)
    assert episode.tools["add"] == ToolUse(1)
    assert (episode.tools["refuse"].errors, episode.tools["refuse"].causes) == (1, {"said_no": 1})


async def test_the_address_is_an_mcp_server_for_the_episode_alone(play):
    import mcp
    from mcp.client.streamable_http import streamable_http_client

    urls = []

    async def workflow(task, tuner):
        urls.append(tuner.tools.url)
        async with streamable_http_client(tuner.tools.url) as streams, mcp.ClientSession(*streams[:2]) as session:
            await session.initialize()
            names = {tool.name for tool in (await session.list_tools()).tools}
            assert names == {tool["function"]["name"] for tool in tuner.tools.openai}
            kept = await session.call_tool("add", {"note": "tea"})
            no = await session.call_tool("refuse", {})
            assert (kept.isError, kept.content[0].text, no.isError) == (False, "1 notes", True)
        return WorkflowOutput(answer=await tuner.tools.call("show"), reward=1.0)

    episode = await play(workflow)
    assert (episode.error, episode.output.answer) == (None, "tea")
    assert {name: use.calls for name, use in episode.tools.items()} == {"add": 1, "refuse": 1, "show": 1}
    import httpx

    assert httpx.post(urls[0], json={"jsonrpc": "2.0", "id": 1, "method": "ping"}).status_code == 404


async def test_a_workflow_in_a_thread_waits_for_its_tools_and_one_that_is_over_calls_none(play):
    kept = []

    def workflow(task, tuner):
        kept.append(tuner)
        asyncio.run(tuner.tools.call("add", {"note": "milk"}))
        return WorkflowOutput(answer=tuner.wait(tuner.tools.call("show")), reward=1.0)

    assert (await play(workflow)).output.answer == "milk"
    with pytest.raises(Exception, match="is over"):
        await kept[0].tools.call("show")
