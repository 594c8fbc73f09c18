"""Workflows whose agents are several models, without AgentScope, for tests of the local backbone."""

from __future__ import annotations

from astune import Task, Tuner, Workflow, WorkflowOutput


class Village(Workflow):
    """A wolf and a villager speak by turns, and an elder and a chief once. The more digits a side says, the more it
    wins."""

    def measure(self, text: str) -> float:
        return sum(sign.isdigit() for sign in text) / max(len(text), 1)

    async def execute(self, task: Task, tuner: Tuner) -> WorkflowOutput:
        said = {"wolf_1": "", "elder": "", "villager_1": "", "chief": ""}
        talk = [{"role": "user", "content": task.query}]
        for agent in ("wolf_1", "elder", "villager_1", "chief", "wolf_1", "villager_1"):
            policy = "villager" if agent == "chief" else None  # the others are the configuration's to say
            client = tuner.openai_client(agent, policy=policy)
            answer = await client.chat.completions.create(model="m", messages=talk)
            text = answer.choices[0].message.content or ""
            talk += [{"role": "assistant", "content": text}, {"role": "user", "content": "go on"}]
            said[agent] += text
        shares = {agent: self.measure(text) for agent, text in said.items()}
        tuner.reward("wolf_1", shares["wolf_1"])
        tuner.reward("villager_1", shares["villager_1"] - shares["wolf_1"])
        return WorkflowOutput(answer="", reward=shares["villager_1"])


class Hamlet(Village):
    """The same for models that say anything: what counts differs from one text to nearly every other."""

    def measure(self, text: str) -> float:
        return sum(map(ord, text)) % 97 / 97
