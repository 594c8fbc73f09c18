"""A workflow without AgentScope, over the plain OpenAI client, for tests of the local backbone."""

from __future__ import annotations

import time
from dataclasses import replace

from astune import Task, Tuner, Workflow, WorkflowOutput


class Asker(Workflow):
    """Two model calls; the reward is the share of digits in the first answer, so there is something to learn."""

    async def execute(self, task: Task, tuner: Tuner) -> WorkflowOutput:
        client = tuner.openai_client("asker")
        messages = [{"role": "user", "content": task.query}]
        first = await client.chat.completions.create(model="m", messages=messages)
        text = first.choices[0].message.content or ""
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "again"}]
        await client.chat.completions.create(model="m", messages=messages)
        if task.metadata.get("broken"):
            raise ValueError("this task always fails")
        digits = sum(character.isdigit() for character in text)
        return WorkflowOutput(answer=text, reward=digits / max(len(text), 1), metrics={"digits": digits})


class SameForAll(Asker):
    """The same reward for every answer."""

    async def execute(self, task: Task, tuner: Tuner) -> WorkflowOutput:
        return replace(await super().execute(task, tuner), reward=0.5)


class Blocker(Asker):
    """Prints, and then keeps everybody waiting."""

    async def execute(self, task: Task, tuner: Tuner) -> WorkflowOutput:
        print("asking")
        time.sleep(0.1)
        return await super().execute(task, tuner)
