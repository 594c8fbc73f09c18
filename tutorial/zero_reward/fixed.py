"""`agent.py` with both faults fixed: `diff agent.py fixed.py` shows the two lines."""

import re
from operator import add, floordiv, mul, sub

from agentscope.agent import Agent
from agentscope.message import UserMsg
from agentscope.tool import FunctionTool, Toolkit

from astune import Episode, Task, Tuner, Workflow, WorkflowOutput
from astune.workflow.agentscope import training_defaults

OPERATIONS = {"+": add, "-": sub, "*": mul, "/": floordiv}


def calculator(expression: str) -> str:
    """Evaluate arithmetic.

    Args:
        expression: for example 12 * 7
    """
    match = re.fullmatch(r"(\d+) ?([-+*/]) ?(\d+)", expression)
    if match is None:
        return "Error: cannot calculate that."
    left, sign, right = match.groups()
    return str(OPERATIONS[sign](int(left), int(right)))


class Solver(Workflow):
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


def judge(task: Task, episode: Episode) -> bool:
    text = str(episode.output.answer) if episode.output else ""
    found = re.search(r"The answer is (\d+)\.", text)
    return found is not None and found[1] == task.answer
