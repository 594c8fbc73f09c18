"""AgentScope's AnthropicChatModel, of the line that is installed, on the endpoint of an episode."""

import pytest

from astune.context_tracker.tracker import ContextTracker
from astune.online import collect_message_ids
from astune.testing import ScriptedPolicy
from astune.types import Sampling, Task
from astune.workflow.tuner import Tuner
from tests.agents.answers import GUIDE, ODD_CALL, call, think

pytest.importorskip("anthropic")
pytest.importorskip("agentscope")

ANSWERS = [
    think("Where to?", ODD_CALL),
    "Two more.\n" + call("weather", '{"city": "東京"}') + "\n" + call("weather", '{"city": "Atlantis"}'),
    "Zürich it is.",
]


def guide_of_1(url, stream):
    from agentscope.agent import ReActAgent
    from agentscope.formatter import AnthropicChatFormatter
    from agentscope.model import AnthropicChatModel

    from tests.agents.agentscope1_workflows import toolkit_of, weather

    model = AnthropicChatModel("m", "none", stream=stream, client_kwargs={"base_url": url})
    agent = ReActAgent(
        name="guide", sys_prompt=GUIDE, model=model, formatter=AnthropicChatFormatter(), toolkit=toolkit_of(weather)
    )
    agent.set_console_output_enabled(False)
    return agent, model.client


def guide_of_2(url, stream):
    from agentscope.agent import Agent
    from agentscope.credential import AnthropicCredential
    from agentscope.model import AnthropicChatModel

    from astune.workflow.agentscope import training_defaults
    from tests.agents.agentscope2_workflows import weather_toolkit

    credential = AnthropicCredential(api_key="none", base_url=url)
    model = AnthropicChatModel(credential=credential, model="m", stream=stream, max_retries=0)
    agent = Agent(name="guide", system_prompt=GUIDE, model=model, toolkit=weather_toolkit(), **training_defaults())
    return agent, model.client


@pytest.mark.parametrize("stream", [True, False])
async def test_an_agent_on_anthropics_model_is_one_timeline(chat_format, line, stream):
    policy = ScriptedPolicy(ANSWERS, chat_format, context_length=8192)
    tracker = ContextTracker(policy, chat_format, Sampling(512), max_turns=20, seed=1)
    tuner = Tuner(Task("trip", "Where is it warm?"), "train/anthropic/0", tracker)
    if line == 1:
        from agentscope.message import Msg

        agent, client = guide_of_1(tuner.base_url(), stream)
        async with client:
            with collect_message_ids(agent) as ids:
                reply = await agent(Msg("user", "Where is it warm?", "user"))
    else:
        from agentscope.message import UserMsg

        agent, client = guide_of_2(tuner.base_url(), stream)
        async with client:
            with collect_message_ids(agent) as ids:
                reply = await agent.reply(UserMsg("user", "Where is it warm?"))
    tuner.close()
    assert reply.get_text_content().endswith("Zürich it is.")
    assert [each.rpartition("_")[2] for each in ids] == ["0", "1", "2"] and ids[0].startswith("msg_")
    assert tuner.failures == []
    assert [(len(timeline.spans), timeline.fork) for timeline in tracker.timelines()] == [(3, None)]
    assert [tuple(turn.prompt_ids) for turn in tracker.turns] == [prompt for prompt, _ in policy.calls]
    assert [use.calls for use in tuner.tool_log.uses.values()] == [3]
