"""An agent in a module, which every process can import, and a reader of tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from astune import Episode, Task, Tuner, WorkflowOutput


async def ask(task: Task, tuner: Tuner) -> WorkflowOutput:
    question = [{"role": "user", "content": task.query}]
    reply = await tuner.openai_client().chat.completions.create(model="m", messages=question)
    return WorkflowOutput(answer=reply.choices[0].message.content)


def first_is_best(task: Task, episode: Episode) -> float:
    """One attempt of a group is better, so that every step is an update."""
    return float(episode.episode_id.endswith("/0"))


class TwoTasks:
    def __init__(self, config: Any = None) -> None:
        self.config = config

    def read(self, split: str) -> Sequence[Task]:
        return [Task(f"{split}-{n}", f"{split} {n} + 2?", answer=str(n + 2)) for n in range(2)]
