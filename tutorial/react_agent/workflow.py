"""The agent in training, with AgentScope 1.x: it is handed ASTune's client and answers the task's question.

The reward is the judge's, and the turns are recorded by the client, so this is all there is.
"""

import sys
from pathlib import Path

from agent import AgentScopeReActAgent
from agentscope.message import TextBlock
from agentscope.tool import Toolkit, ToolResponse

from astune import Task, Tuner, Workflow, WorkflowOutput

sys.path.append(str(Path(__file__).resolve().parents[1] / "math_agent"))
from calculator import calculator


def calculator_tool(expression: str) -> ToolResponse:
    return ToolResponse(content=[TextBlock(type="text", text=calculator(expression))])


calculator_tool.__doc__ = calculator.__doc__


class ReActMath(Workflow):
    async def execute(self, task: Task, tuner: Tuner) -> WorkflowOutput:
        toolkit = Toolkit()
        toolkit.register_tool_function(calculator_tool, func_name="calculator")
        agent = AgentScopeReActAgent(
            openai_client=tuner.openai_client("react_agent"),
            model_name="policy",
            generate_kwargs={},  # temperature and length of an answer are astune.rollout's
            system_prompt="Use the calculator. End with: The answer is N.",
            toolkit=toolkit,
            max_iters=sys.maxsize,  # no limit of the agent's own on turns
        )
        agent.agent.set_console_output_enabled(False)
        reply = await agent.reply(task.query)
        return WorkflowOutput(answer=reply.get_text_content())
