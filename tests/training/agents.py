"""Workflows for tests of the training loop. Each asks the model once; what attempts get is fixed by their number."""

import asyncio
import contextlib
import os
import random
import time
from dataclasses import replace

from astune import Task, Tuner, WorkflowOutput


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
    return replace(output, reward=(0.1, 0.2, 0.9, 0.3, 0.9, 0.5, 0.6, 0.6)[int(rest[1])])


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
