"""The demo's agent for AgentScope 1.x: the same prompt, the same tool, its `ReActAgent`.

astune demo astune.rollout.agentscope_learn_protocol=workflow_agentscope1.py:MathAgent
"""

from agentscope.agent import ReActAgent
from agentscope.formatter import OpenAIChatFormatter
from agentscope.memory import InMemoryMemory
from agentscope.message import Msg, TextBlock
from agentscope.tool import Toolkit, ToolResponse
from calculator import calculator

from astune import Task, Tuner, Workflow, WorkflowOutput


def calculator_tool(expression: str) -> ToolResponse:
    return ToolResponse(content=[TextBlock(type="text", text=calculator(expression))])


calculator_tool.__doc__ = calculator.__doc__


class MathAgent(Workflow):
    async def execute(self, task: Task, tuner: Tuner) -> WorkflowOutput:
        toolkit = Toolkit()
        toolkit.register_tool_function(calculator_tool, func_name="calculator")
        agent = ReActAgent(
            name="solver",
            sys_prompt="Use the calculator. End with: The answer is N.",
            model=tuner.model("solver"),
            formatter=OpenAIChatFormatter(),
            toolkit=toolkit,
            memory=InMemoryMemory(),
        )
        agent.set_console_output_enabled(False)
        reply = await agent(Msg("user", task.query, "user"))
        return WorkflowOutput(answer=reply.get_text_content())
