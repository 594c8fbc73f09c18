"""A support agent of AgentScope 2.x. It answers in one go; the rubric says what its answer is worth."""

from agentscope.agent import Agent
from agentscope.message import UserMsg

from astune import Task, Tuner, Workflow, WorkflowOutput
from astune.workflow.agentscope import training_defaults


class Support(Workflow):
    async def execute(self, task: Task, tuner: Tuner) -> WorkflowOutput:
        agent = Agent(
            name="support",
            system_prompt="You answer customers of a web shop.",
            model=tuner.model("support"),
            **training_defaults(),
        )
        reply = await agent.reply(UserMsg(name="user", content=task.query))
        return WorkflowOutput(answer=reply.get_text_content())
