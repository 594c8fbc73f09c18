"""The demo's agent: a ReAct agent of AgentScope 2.x with a calculator. Nothing in it knows that it is trained.

`execute` is called once per episode; `tuner.model` stands in for the chat model the agent would otherwise have.
"""

from agentscope.agent import Agent
from agentscope.message import UserMsg
from agentscope.tool import FunctionTool, Toolkit
from calculator import calculator

from astune import Task, Tuner, Workflow, WorkflowOutput
from astune.workflow.agentscope import training_defaults


class MathAgent(Workflow):
    async def execute(self, task: Task, tuner: Tuner) -> WorkflowOutput:
        agent = Agent(
            name="solver",
            system_prompt="Use the calculator. End with: The answer is N.",
            model=tuner.model("solver"),
            toolkit=Toolkit(tools=[FunctionTool(calculator)]),
            **training_defaults(),  # tools run without asking, no clock in the prompt
        )
        reply = await agent.reply(UserMsg(name="user", content=task.query))
        return WorkflowOutput(answer=reply.get_text_content())
