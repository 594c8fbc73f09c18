"""Workflows as a user of AgentScope 1.x writes them, each small and each with another habit."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from agentscope.agent import ReActAgent
from agentscope.formatter import DeepSeekChatFormatter, OpenAIChatFormatter, OpenAIMultiAgentFormatter
from agentscope.mcp import StdIOStatefulClient
from agentscope.message import Msg, TextBlock
from agentscope.pipeline import MsgHub, sequential_pipeline
from agentscope.plan import PlanNotebook
from agentscope.token import CharTokenCounter
from agentscope.tool import Toolkit, ToolResponse
from pydantic import BaseModel

from astune import WorkflowOutput
from tests.agents.answers import CHIEF, CLERK, GUIDE, OPTIMIST, SCEPTIC, SCOUT

MCP_SERVER = Path(__file__).parent / "mcp_server.py"


def said(text: str) -> ToolResponse:
    return ToolResponse(content=[TextBlock(type="text", text=text)])


def weather(city: str, days: float = 1) -> ToolResponse:
    """The weather of a city.

    Args:
        city (str): its name
        days (float): how far ahead
    """
    if city == "Atlantis":
        raise ValueError("no such city: Atlantis")
    return said(f"{city}: sunny, 21°")


def toolkit_of(*functions) -> Toolkit:
    toolkit = Toolkit()
    for function in functions:
        toolkit.register_tool_function(function)
    return toolkit


def make_agent(tuner, name: str, system: str, *, toolkit=None, formatter=None, trainable=True, **options) -> ReActAgent:
    agent = ReActAgent(
        name=name,
        sys_prompt=system,
        model=tuner.model(name, trainable=trainable),
        formatter=formatter or OpenAIChatFormatter(),
        toolkit=toolkit,
        **options,
    )
    agent.set_console_output_enabled(False)
    return agent


def guide(tuner, **options) -> ReActAgent:
    return make_agent(tuner, "guide", GUIDE, **{"toolkit": toolkit_of(weather), **options})


async def ask(agent: ReActAgent, question: str) -> str:
    return (await agent(Msg("user", question, "user"))).get_text_content()


async def ask_twice(agent: ReActAgent) -> WorkflowOutput:
    await ask(agent, "Zürich, 東京, Atlantis?")
    return WorkflowOutput(answer=await ask(agent, "And Bern?"), reward=1.0)


async def tools(task, tuner):
    """Several turns, calls side by side, a tool that fails, a second question; reasoning is dropped."""
    return await ask_twice(guide(tuner))


async def tools_reasoning_kept(task, tuner):
    """The same with a formatter that sends reasoning back."""
    return await ask_twice(guide(tuner, formatter=DeepSeekChatFormatter()))


async def two_rounds(tuner, formatter) -> WorkflowOutput:
    optimist = make_agent(tuner, "optimist", OPTIMIST, formatter=formatter)
    sceptic = make_agent(tuner, "sceptic", SCEPTIC, formatter=formatter, trainable=False)
    async with MsgHub([optimist, sceptic], announcement=Msg("host", "Will it rain?", "user")):
        await sequential_pipeline([optimist, sceptic])
        message = await sequential_pipeline([optimist, sceptic])
    tuner.reward("optimist", 0.25)
    tuner.reward("sceptic", -0.25)
    return WorkflowOutput(answer=message.get_text_content(), reward=0.0)


async def debate(task, tuner):
    """Two agents hear each other; the sceptic is not trained; each has a reward of its own."""
    return await two_rounds(tuner, OpenAIChatFormatter())


async def debate_history(task, tuner):
    """The same with the formatter that tells a conversation of many as one user message."""
    return await two_rounds(tuner, OpenAIMultiAgentFormatter())


class Place(BaseModel):
    city: str
    degrees: float


async def structured_reply(task, tuner):
    """Structured output that the agent gives when it is ready, then a plain question."""
    agent = guide(tuner)
    message = await agent(Msg("user", "Where is it warm?", "user"), structured_model=Place)
    await ask(agent, "Where shall I go?")
    return WorkflowOutput(answer=message.metadata, reward=1.0)


async def structured_model(task, tuner):
    """Structured output of the model itself."""
    messages = [{"role": "system", "content": GUIDE}, {"role": "user", "content": "Where is it warm?"}]
    response = await tuner.model("guide")(messages, structured_model=Place)
    return WorkflowOutput(answer=response.metadata, reward=1.0)


async def structured_model_second_try(task, tuner):
    """The same, where the first answer does not fit: AgentScope asks again, with a tool that must be called."""
    return await structured_model(task, tuner)


async def out_of_rounds(task, tuner):
    """More rounds than the agent may have: it is made to sum up."""
    agent = guide(tuner, max_iters=2)
    return WorkflowOutput(answer=await ask(agent, "Where is it warm?"), reward=1.0)


def short_memory(**options) -> ReActAgent.CompressionConfig:
    counter = CharTokenCounter()
    return ReActAgent.CompressionConfig(
        enable=True, agent_token_counter=counter, compression_prompt="Sum up.", **options
    )


async def compressed(task, tuner):
    """Amid a reply the history grows too long; a summary replaces all but the last call and its result."""
    agent = guide(tuner, compression_config=short_memory(trigger_threshold=1000, keep_recent=1))
    return WorkflowOutput(answer=await ask(agent, "Is it warm? " + "I like it warm. " * 40), reward=1.0)


def plan_hint(plan) -> str:
    """Unlike AgentScope's own it leaves out when the plan was made, which differs from attempt to attempt."""
    text = "Make a plan first." if plan is None else f"The plan is: {plan.name} ({plan.state})."
    return f"<system-hint>{text}</system-hint>"


class Notebook(PlanNotebook):
    """With the one tool that this trip needs."""

    def list_tools(self):
        return [self.create_plan]


async def plan(task, tuner):
    """A plan whose state is written into every request, and taken out of the next."""
    agent = guide(tuner, plan_notebook=Notebook(plan_to_hint=plan_hint))
    return WorkflowOutput(answer=await ask(agent, "Where to?"), reward=1.0)


async def team(task, tuner):
    """Tools that are agents: one asked twice and remembering, another beside it."""
    clerk = make_agent(tuner, "clerk", CLERK, toolkit=toolkit_of(weather))
    scout = make_agent(tuner, "scout", SCOUT, toolkit=toolkit_of(weather))

    async def ask_clerk(question: str) -> ToolResponse:
        """Ask the clerk.

        Args:
            question (str): what to ask
        """
        return said(await ask(clerk, question))

    async def ask_scout(question: str) -> ToolResponse:
        """Ask the scout.

        Args:
            question (str): what to ask
        """
        return said(await ask(scout, question))

    chief = make_agent(tuner, "chief", CHIEF, toolkit=toolkit_of(ask_clerk, ask_scout), parallel_tool_calls=True)
    return WorkflowOutput(answer=await ask(chief, "Bern or Basel?"), reward=1.0)


async def two_attempts(task, tuner):
    """Two agents of one name and one question side by side."""
    scouts = [make_agent(tuner, "scout", SCOUT, toolkit=toolkit_of(weather)) for _ in range(2)]
    answers = await asyncio.gather(*(ask(scout, "Is Basel open?") for scout in scouts))
    return WorkflowOutput(answer=answers, reward=1.0)


async def mcp(task, tuner):
    """A tool of an MCP server."""
    client = StdIOStatefulClient(name="maps", command=sys.executable, args=[str(MCP_SERVER)])
    await client.connect()
    try:
        toolkit = Toolkit()
        await toolkit.register_mcp_client(client)
        answer = await ask(guide(tuner, toolkit=toolkit), "How far is Zürich from Bern?")
        return WorkflowOutput(answer=answer, reward=1.0)
    finally:
        await client.close()
