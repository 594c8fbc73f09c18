"""An agent of AgentScope 2.x whose tools are those of its task's environment."""

from agentscope.agent import Agent
from agentscope.message import UserMsg

from astune import Task, Tuner, Workflow, WorkflowOutput
from astune.workflow.agentscope import training_defaults


class AppsAgent(Workflow):
    async def execute(self, task: Task, tuner: Tuner) -> WorkflowOutput:
        env = tuner.environment  # a world of this episode's own
        agent = Agent(
            name="assistant",
            system_prompt=env.messages[0]["content"],
            model=tuner.model("assistant"),
            toolkit=env.toolkit(),
            **training_defaults(),
        )
        reply = await agent.reply(UserMsg(name="user", content=env.query))
        return WorkflowOutput(answer=reply.get_text_content())
