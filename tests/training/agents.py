"""Workflows for tests of the training loop. Each asks the model once; what attempts get is fixed by their number."""

import asyncio
import contextlib
import os
import random
import time
from dataclasses import replace

from astune import Episode, Task, Tuner, Verdict, WorkflowOutput


async def quick(task: Task, tuner: Tuner) -> WorkflowOutput:
    ask = [{"role": "user", "content": task.query}]
    await tuner.openai_client().chat.completions.create(model="m", messages=ask)
    if task.metadata.get("broken"):
        raise ValueError("this task always fails")
    if task.metadata.get("moves"):
        os.chdir("/")
    return WorkflowOutput(answer="4", reward=float(tuner.episode_id[-1] in "02"))


async def same_for_all(task: Task, tuner: Tuner) -> WorkflowOutput:
    return replace(await quick(task, tuner), reward=0.5)


async def blocker(task: Task, tuner: Tuner) -> WorkflowOutput:
    """Prints, and then keeps everybody waiting."""
    print("asking")
    time.sleep(0.1)
    return await quick(task, tuner)


async def stubborn(task: Task, tuner: Tuner) -> WorkflowOutput:
    """In the second step, leaves a file that says so, and swallows its cancellation beside a thread without end."""
    if tuner.episode_id.startswith("train/2/"):
        open(os.path.join(os.path.dirname(__file__), "waiting"), "w").close()
        asyncio.get_running_loop().run_in_executor(None, time.sleep, 600)
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(600)
    return await quick(task, tuner)


async def by_step(task: Task, tuner: Tuner) -> WorkflowOutput:
    """Held-out attempts get the reward of their step, training attempts one or the other."""
    output = await quick(task, tuner)
    phase, *rest = tuner.episode_id.split("/")
    if phase != "eval":
        return output
    return replace(output, reward=(0.1, 0.2, 0.9, 0.3, 0.9, 0.5, 0.6, 0.6)[int(rest[-3])])


async def by_step_with_metrics(task: Task, tuner: Tuner) -> WorkflowOutput:
    """As `by_step`, for the judge `in_parts`."""
    output = await by_step(task, tuner)
    return replace(output, reward=None, metrics={"told": output.reward or 0.0})


def in_parts(task: Task, episode: Episode) -> Verdict:
    """The reward of `by_step` is best after steps 2 and 4, `format` after step 5, `length` is least after step 3."""
    assert episode.output is not None
    step = int(episode.episode_id.split("/")[-3]) if episode.episode_id.startswith("eval") else 0
    metrics = {"format": step % 6 / 5, "length": abs(step - 3) + 1.0}
    return Verdict(episode.output.metrics["told"], metrics=metrics)


async def teaches_by_task(task: Task, tuner: Tuner) -> WorkflowOutput:
    """All attempts get the same, but for tasks whose number can be divided by 3."""
    output = await quick(task, tuner)
    return output if int(task.query.rstrip("?")) % 3 == 0 else replace(output, reward=0.25)


async def by_number(task: Task, tuner: Tuner) -> WorkflowOutput:
    """A reward that depends on task and step."""
    step, number = int(tuner.episode_id.split("/")[1]), int(task.query.rstrip("?"))
    return replace(await quick(task, tuner), reward=1.0 / (1 + number + step))


async def uneven(task: Task, tuner: Tuner) -> WorkflowOutput:
    """Asks twice, and lets others go on in between, each attempt by its name as often as it likes."""
    draw = random.Random(tuner.episode_id)
    for _ in range(2):
        for _ in range(draw.choice([0, 1, 30, 300])):
            await asyncio.sleep(0)
        output = await quick(task, tuner)
    return output


async def slow_third(task: Task, tuner: Tuner) -> WorkflowOutput:
    """The third attempt at a task asks once and does not end."""
    output = await quick(task, tuner)
    if tuner.episode_id.startswith("train/") and tuner.episode_id.endswith("/2"):
        await asyncio.Event().wait()
    return output


ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
calls_of_add = 0


async def calculating(task: Task, tuner: Tuner) -> WorkflowOutput:
    """Calls a tool, which is dead from its eleventh call on."""
    global calls_of_add
    client, messages = tuner.openai_client(), [{"role": "user", "content": task.query}]
    asked = (await client.chat.completions.create(model="m", messages=messages, tools=[ADD])).choices[0].message
    calls_of_add += 1
    said = "4" if calls_of_add <= 10 else "Error: the calculator is gone"
    result = {"role": "tool", "tool_call_id": asked.tool_calls[0].id, "content": said}
    messages += [asked.model_dump(exclude_none=True), result]
    await client.chat.completions.create(model="m", messages=messages, tools=[ADD])
    return WorkflowOutput(answer="4", reward=float(tuner.episode_id[-1] in "02"))
