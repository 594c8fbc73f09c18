"""An agent that crosses a frozen lake. It talks to the model itself, as nothing more than a loop is needed: what the
environment says goes to the model, what the model says goes to the environment.
"""

import re

from astune import Task, Tuner, Workflow, WorkflowOutput

SYSTEM = {"role": "system", "content": "End with: The answer is N."}


class Walker(Workflow):
    async def execute(self, task: Task, tuner: Tuner) -> WorkflowOutput:
        env, client = tuner.environment, tuner.openai_client()
        messages = [SYSTEM, seen(env.query)]
        while not env.done:
            completion = await client.chat.completions.create(model="policy", messages=messages)
            text = completion.choices[0].message.content or ""
            move = re.search(r"The answer is (\d)", text)
            state = await env.step(move[1] if move else "")
            told = state.messages[-1]["content"]
            messages += [{"role": "assistant", "content": text}, seen(told)]
        return WorkflowOutput(answer=told)


def seen(text):
    """The shipped tiny model knows that it is to answer after the result of a tool, and little else."""
    return {"role": "user", "content": f"<tool_response>\n{text}\n</tool_response>"}
