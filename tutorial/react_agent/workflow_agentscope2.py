"""The agent in training, with AgentScope 2.x: `workflow.py` says what happens."""

import sys
from pathlib import Path

from agent_agentscope2 import AgentScopeReActAgent
from agentscope.tool import FunctionTool, Toolkit

from astune import Task, Tuner, Workflow, WorkflowOutput
from astune.workflow.agentscope import training_defaults

sys.path.append(str(Path(__file__).resolve().parents[1] / "math_agent"))
from calculator import calculator


class ReActMath(Workflow):
    async def execute(self, task: Task, tuner: Tuner) -> WorkflowOutput:
        agent = AgentScopeReActAgent(
            openai_client=tuner.openai_client("react_agent"),
            model_name="policy",
            system_prompt="Use the calculator. End with: The answer is N.",
            toolkit=Toolkit(tools=[FunctionTool(calculator)]),
            max_iters=sys.maxsize,  # no limit of the agent's own on turns
            **training_defaults(),  # tools run without asking, no clock in the prompt
        )
        reply = await agent.reply(task.query)
        return WorkflowOutput(answer=reply.get_text_content())
