"""The agent that the tests of episodes in Ray's actors play. What it does besides talking, the task says."""

import asyncio
import os
import signal
from pathlib import Path

from astune import Task, Tuner, WorkflowOutput


async def talks(task: Task, tuner: Tuner) -> WorkflowOutput:
    """As many turns as the number of the attempt says."""
    number, folder = int(tuner.episode_id[-1]), Path(os.environ.get("ASTUNE_TEST_FOLDER", "."))
    print(f"printed by {tuner.episode_id}")
    if task.metadata.get("dies") and number == 1 and not (folder / "died").exists():
        (folder / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    client, messages = tuner.openai_client(), []
    for turn in range(number + 1):
        messages.append({"role": "user", "content": f"{task.query} {turn}"})
        answer = await client.chat.completions.create(model="m", messages=messages)
        messages.append(answer.choices[0].message.model_dump(exclude_none=True))
        await waits(task, folder, number)
    return WorkflowOutput(answer="4", reward=number / 8)


async def waits(task: Task, folder: Path, number: int) -> None:
    """For a file, where the task says so. The attempt leaves another as it begins to, and one if it is cancelled."""
    if name := task.metadata.get("waits_for"):
        (folder / f"begun-{task.task_id}-{number}").touch()
        try:
            while not (folder / name).exists():
                await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            (folder / f"stopped-{number}").touch()
            raise
