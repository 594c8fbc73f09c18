"""The demo's agent, with a tool that waits for a service in training: 0 to 2 seconds, drawn anew for every call."""

from __future__ import annotations

import asyncio
import random

from agentscope.agent import Agent
from agentscope.message import UserMsg
from agentscope.tool import FunctionTool, Toolkit

from astune import Task, Tuner, Workflow, WorkflowOutput
from astune.plugins import load_plugin
from astune.support.resources import tutorial_dir
from astune.workflow.agentscope import training_defaults

SLOWEST = 2.0
calculator = load_plugin(f"{tutorial_dir() / 'math_agent' / 'calculator.py'}:calculator", kind="tool")


async def slow_calculator(expression: str) -> str:
    """Evaluate arithmetic.

    Args:
        expression: for example 12 * 7
    """
    await asyncio.sleep(random.uniform(0.0, SLOWEST))
    return str(calculator(expression))


slow_calculator.__name__ = "calculator"


class SlowMathAgent(Workflow):
    async def execute(self, task: Task, tuner: Tuner) -> WorkflowOutput:
        tool = slow_calculator if tuner.episode_id.startswith("train/") else calculator
        agent = Agent(
            name="solver",
            system_prompt="Use the calculator. End with: The answer is N.",
            model=tuner.model("solver"),
            toolkit=Toolkit(tools=[FunctionTool(tool)]),
            **training_defaults(),
        )
        reply = await agent.reply(UserMsg(name="user", content=task.query))
        return WorkflowOutput(answer=reply.get_text_content())
