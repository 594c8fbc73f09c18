"""Workflows as a user of AgentScope 2.x writes them, each small and each with another habit."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from agentscope.agent import Agent, ContextConfig, ReActConfig
from agentscope.formatter import DeepSeekChatFormatter, OpenAIMultiAgentFormatter
from agentscope.mcp import MCPClient, StdioMCPConfig
from agentscope.message import SystemMsg, TextBlock, UserMsg
from agentscope.pipeline import TeamMember, TeamPipeline
from agentscope.tool import FunctionTool, ToolChunk, Toolkit
from pydantic import BaseModel

from astune import WorkflowOutput
from astune.workflow.agentscope import training_defaults
from tests.agents.answers import CHIEF, CLERK, GUIDE, OPTIMIST, SCEPTIC, SCOUT

MCP_SERVER = Path(__file__).parent / "mcp_server.py"


def said(text: str) -> ToolChunk:
    return ToolChunk(content=[TextBlock(text=text)])


def weather(city: str, days: float = 1) -> ToolChunk:
    """The weather of a city.

    Args:
        city: its name
        days: how far ahead
    """
    if city == "Atlantis":
        raise ValueError("no such city: Atlantis")
    return said(f"{city}: sunny, 21°")


def weather_toolkit() -> Toolkit:
    return Toolkit(tools=[FunctionTool(weather)])


def guide(tuner, *, toolkit=None, formatter=None, **options) -> Agent:
    model = tuner.model("guide", formatter=formatter)
    toolkit = toolkit or weather_toolkit()
    return Agent(name="guide", system_prompt=GUIDE, model=model, toolkit=toolkit, **training_defaults(), **options)


async def ask(agent: Agent, question: str) -> str:
    return (await agent.reply(UserMsg("user", question))).get_text_content()


async def ask_twice(agent: Agent) -> WorkflowOutput:
    await ask(agent, "Zürich, 東京, Atlantis?")
    return WorkflowOutput(answer=await ask(agent, "And Bern?"), reward=1.0)


async def tools(task, tuner):
    """Several turns, calls side by side, a tool that fails, a second question; reasoning is dropped."""
    return await ask_twice(guide(tuner))


async def tools_reasoning_kept(task, tuner):
    """The same with a formatter that sends reasoning back."""
    return await ask_twice(guide(tuner, formatter=DeepSeekChatFormatter()))


async def two_rounds(tuner, formatter=None) -> WorkflowOutput:
    def speaker(name, system, **options):
        model = tuner.model(name, formatter=formatter, **options)
        return Agent(name=name, system_prompt=system, model=model, **training_defaults())

    optimist, sceptic = speaker("optimist", OPTIMIST), speaker("sceptic", SCEPTIC, trainable=False)
    topic = UserMsg("host", "Will it rain?")
    await optimist.observe(topic)
    await sceptic.observe(topic)
    for speaking, listening in [(optimist, sceptic), (sceptic, optimist)] * 2:
        text = (await speaking.reply()).get_text_content()
        await listening.observe(UserMsg(speaking.name, text))
    tuner.reward("optimist", 0.25)
    tuner.reward("sceptic", -0.25)
    return WorkflowOutput(answer=text, reward=0.0)


async def debate(task, tuner):
    """Two agents hear each other; the sceptic is not trained; each has a reward of its own."""
    return await two_rounds(tuner)


async def debate_history(task, tuner):
    """The same with the formatter that tells a conversation of many as one user message."""
    return await two_rounds(tuner, OpenAIMultiAgentFormatter())


class Place(BaseModel):
    city: str
    degrees: float


async def structured_reply(task, tuner):
    """Structured output that the agent gives when it is ready."""
    message = await guide(tuner).reply(UserMsg("user", "Where is it warm?"), structured_schema=Place)
    return WorkflowOutput(answer=message.structured_output, reward=1.0)


async def structured_reply_forced(task, tuner):
    """Structured output that the agent is made to give when its rounds are used up, then a plain question."""
    agent = guide(tuner, react_config=ReActConfig(max_iters=1))
    message = await agent.reply(UserMsg("user", "Where is it warm?"), structured_schema=Place)
    await ask(agent, "Where shall I go?")
    return WorkflowOutput(answer=message.structured_output, reward=1.0)


async def structured_model(task, tuner):
    """Structured output of the model itself."""
    messages = [SystemMsg("system", GUIDE), UserMsg("user", "Where is it warm?")]
    response = await tuner.model("guide").generate_structured_output(messages, Place)
    return WorkflowOutput(answer=response.content, reward=1.0)


async def out_of_rounds(task, tuner):
    """More rounds than the agent may have: it is made to sum up."""
    agent = guide(tuner, react_config=ReActConfig(max_iters=2))
    return WorkflowOutput(answer=await ask(agent, "Where is it warm?"), reward=1.0)


def short_memory(**options) -> ContextConfig:
    return ContextConfig(compression_prompt="Sum up.", context_buffer_ratio=0, **options)


async def compressed(task, tuner):
    """Amid a reply the history grows too long; a summary replaces all but the last call and its result."""
    agent = guide(tuner, context_config=short_memory(trigger_ratio=1 / 32, reserve_ratio=1 / 90))
    return WorkflowOutput(answer=await ask(agent, "Is it warm? " + "I like it warm. " * 40), reward=1.0)


async def compressed_whole(task, tuner):
    """Before a reply the history is too long; a summary replaces it, the new question too."""
    agent = guide(tuner, context_config=short_memory(trigger_ratio=1 / 32, reserve_ratio=0.001))
    await ask(agent, "Is it warm in Zürich?")
    return WorkflowOutput(answer=await ask(agent, "And Bern? " + "I like it warm. " * 40), reward=1.0)


def member(tuner, name: str, system: str) -> Agent:
    return Agent(
        name=name,
        system_prompt=system,
        model=tuner.model(name),
        toolkit=weather_toolkit(),
        **training_defaults(),
    )


async def team(task, tuner):
    """Tools that are agents: one asked twice and remembering, another beside it."""
    clerk, scout = member(tuner, "clerk", CLERK), member(tuner, "scout", SCOUT)

    async def ask_clerk(question: str) -> ToolChunk:
        """Ask the clerk.

        Args:
            question: what to ask
        """
        return said(await ask(clerk, question))

    async def ask_scout(question: str) -> ToolChunk:
        """Ask the scout.

        Args:
            question: what to ask
        """
        return said(await ask(scout, question))

    toolkit = Toolkit(tools=[FunctionTool(ask_clerk), FunctionTool(ask_scout)])
    model = tuner.model("chief")
    chief = Agent(name="chief", system_prompt=CHIEF, model=model, toolkit=toolkit, **training_defaults())
    return WorkflowOutput(answer=await ask(chief, "Bern or Basel?"), reward=1.0)


async def team_pipeline(task, tuner):
    """The same with AgentScope's own team."""
    model = tuner.model("chief")
    chief = Agent(name="chief", system_prompt=CHIEF, model=model, toolkit=Toolkit(), **training_defaults())
    members = [
        TeamMember(agent=member(tuner, "clerk", CLERK), description="knows places"),
        TeamMember(agent=member(tuner, "scout", SCOUT), description="looks"),
    ]
    async for _ in TeamPipeline(chief, members).reply_stream(UserMsg("user", "Bern or Basel?")):
        pass
    return WorkflowOutput(answer=chief.state.context[-1].get_text_content(), reward=1.0)


async def two_attempts(task, tuner):
    """Two agents of one name and one question side by side."""
    answers = await asyncio.gather(*(ask(member(tuner, "scout", SCOUT), "Is Basel open?") for _ in range(2)))
    return WorkflowOutput(answer=answers, reward=1.0)


class OrderedMCPClient(MCPClient):
    """Gives the keys of a tool's schema in the order of the alphabet: mcp 1.x and 2.x send them in different ones."""

    async def get_tool(self, name):
        tool = await super().get_tool(name)
        tool.input_schema = dict(sorted(tool.input_schema.items()))
        return tool


async def mcp(task, tuner):
    """A tool of an MCP server."""
    config = StdioMCPConfig(command=sys.executable, args=[str(MCP_SERVER)])
    client = OrderedMCPClient(name="maps", is_stateful=True, mcp_config=config)
    await client.connect()
    try:
        agent = guide(tuner, toolkit=Toolkit(mcps=[client]))
        return WorkflowOutput(answer=await ask(agent, "How far is Zürich from Bern?"), reward=1.0)
    finally:
        await client.close()
