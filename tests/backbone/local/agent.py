"""A workflow without AgentScope, over the plain OpenAI client, for tests of the local backbone."""

from __future__ import annotations

from dataclasses import replace

import openai

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


class Vandal(Asker):
    """Half of its episodes ask for what a model cannot do, each before an honest call."""

    async def execute(self, task: Task, tuner: Tuner) -> WorkflowOutput:
        if task.metadata.get("broken"):
            client = tuner.openai_client("vandal")
            for prompt in ([10**6], [1, 2**31 - 1, 2]):
                try:
                    await client.completions.create(model="m", prompt=prompt)
                except openai.BadRequestError:
                    continue
                raise AssertionError("that was no prompt")
            for options in ({"temperature": 1e-300}, {"temperature": 1e-6}, {"top_p": 1e-50}):
                await client.completions.create(model="m", prompt=[1, 2, 3], **options)
        return await super().execute(replace(task, metadata={}), tuner)


class Greedy(Asker):
    """Rewards as large as numbers get."""

    async def execute(self, task: Task, tuner: Tuner) -> WorkflowOutput:
        output = await super().execute(task, tuner)
        return replace(output, reward=9e29 * (2 * (output.reward or 0.0) - 1))


def beyond(rewards: list[float]) -> list[float]:
    """Advantages of whose gradient float32 does not know the norm."""
    return [9e29 * (2 * reward - 1) for reward in rewards]
