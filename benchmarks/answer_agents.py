"""One question, one answer, written as three agents: what the ways into the model cost beside each other."""

from __future__ import annotations

from typing import Any

from astune import Task, Tuner, Workflow, WorkflowOutput
from astune.context_tracker.tracker import ChatRequest

SYSTEM = (
    "You solve short word problems about everyday things. First find out which calculation the problem calls for, "
    "then do it with the numbers given, and check it once. End with: The answer is N."
)


def messages(query: str) -> list[dict[str, Any]]:
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": query}]


def reward(text: str) -> float:
    """Costs nothing and differs within every group, so that no group is left out for want of signal."""
    return sum(map(ord, text)) % 101 / 100


class OpenAIClient(Workflow):
    """The unmodified `AsyncOpenAI` client, calls staying in the process."""

    async def execute(self, task: Task, tuner: Tuner) -> WorkflowOutput:
        client = tuner.openai_client()
        answer = await client.chat.completions.create(model="policy", messages=messages(task.query))  # type: ignore[arg-type]
        text = answer.choices[0].message.content or ""
        return WorkflowOutput(answer=text, reward=reward(text))


class TunerChat(Workflow):
    """The call that every other way comes down to."""

    async def execute(self, task: Task, tuner: Tuner) -> WorkflowOutput:
        answer = await tuner.chat(ChatRequest(messages(task.query)))
        text = str(answer.message["content"] or "")
        return WorkflowOutput(answer=text, reward=reward(text))


class AgentScope(Workflow):
    """An agent of AgentScope 2.x."""

    async def execute(self, task: Task, tuner: Tuner) -> WorkflowOutput:
        from agentscope.agent import Agent
        from agentscope.message import UserMsg
        from agentscope.tool import Toolkit

        from astune.workflow.agentscope import training_defaults

        agent = Agent(name="agent", system_prompt=SYSTEM, model=tuner.model(), toolkit=Toolkit(), **training_defaults())
        reply = await agent.reply(UserMsg(name="user", content=task.query))
        text = reply.get_text_content() or ""
        return WorkflowOutput(answer=text, reward=reward(text))
