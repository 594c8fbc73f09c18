"""The demo's agent of AgentScope 2.x, but for its prompt: that has a name, so that a search can find a better one."""

import sys
from pathlib import Path

from agentscope.agent import Agent
from agentscope.message import UserMsg
from agentscope.tool import FunctionTool, Toolkit

from astune import Task, Tuner, Workflow, WorkflowOutput
from astune.workflow.agentscope import training_defaults

sys.path.append(str(Path(__file__).parents[1] / "math_agent"))
from calculator import calculator

FIRST = "You solve word problems. End with: The answer is N."


class Solver(Workflow):
    async def execute(self, task: Task, tuner: Tuner) -> WorkflowOutput:
        agent = Agent(
            name="solver",
            system_prompt=tuner.prompt("system", default=FIRST),
            model=tuner.model("solver"),
            toolkit=Toolkit(tools=[FunctionTool(calculator)]),
            **training_defaults(),  # tools run without asking, no clock in the prompt
        )
        reply = await agent.reply(UserMsg(name="user", content=task.query))
        return WorkflowOutput(answer=reply.get_text_content())
