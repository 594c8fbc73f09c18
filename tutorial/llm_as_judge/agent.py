"""A shop assistant with a calculator. Its answers are judged by another model: see llm_as_judge.yaml."""

from operator import add, floordiv, mul, sub

from agentscope.agent import Agent
from agentscope.message import UserMsg
from agentscope.tool import FunctionTool, Toolkit

from astune import Task, Tuner, Workflow, WorkflowOutput
from astune.workflow.agentscope import training_defaults

OPERATIONS = {"+": add, "-": sub, "*": mul, "/": floordiv}


def calculator(expression: str) -> str:
    """Evaluate arithmetic.

    Args:
        expression: for example 12 * 7
    """
    left, sign, right = expression.split()
    return str(OPERATIONS[sign](int(left), int(right)))


class Assistant(Workflow):
    async def execute(self, task: Task, tuner: Tuner) -> WorkflowOutput:
        agent = Agent(
            name="assistant",
            system_prompt="Use the calculator. End with: The answer is N.",
            model=tuner.model("assistant"),
            toolkit=Toolkit(tools=[FunctionTool(calculator)]),
            **training_defaults(),  # tools run without asking, no clock in the prompt
        )
        reply = await agent.reply(UserMsg(name="user", content=task.query))
        return WorkflowOutput(answer=reply.get_text_content())
