"""Agents that play made tasks, and a world for one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from astune import Task, Tuner, WorkflowOutput
from astune.environment import Action, Environment, Instance, Observation
from astune.errors import TaskError

COLOURS = ("red", "green", "blue")


async def solve(task: Task, tuner: Tuner) -> WorkflowOutput:
    """Says what its model says."""
    question = [{"role": "user", "content": task.query}]
    said = await tuner.openai_client().chat.completions.create(model="m", messages=question)  # type: ignore[arg-type]
    return WorkflowOutput(answer=said.choices[0].message.content)


async def open_door(task: Task, tuner: Tuner) -> WorkflowOutput:
    """Does what its model says."""
    said = await solve(task, tuner)
    await tuner.environment.step(str(said.answer))
    return said


class Door(Instance):
    """Has to be opened by its colour."""

    def __init__(self, colour: str) -> None:
        self.colour, self.opened = colour, False

    def first_messages(self) -> Sequence[Mapping[str, Any]]:
        return [{"role": "user", "content": "Three doors."}]

    def step(self, action: Action) -> Observation:
        self.opened = action.text == self.colour
        return Observation((), reward=float(self.opened), done=True)

    def evaluate(self) -> float:
        return float(self.opened)


class Doors(Environment):
    env_type = "doors"

    def task_ids(self, split: str) -> Sequence[str]:
        return COLOURS

    def create(self, task_id: str, params: Mapping[str, Any]) -> Door:
        if task_id not in COLOURS:
            raise TaskError(f"no door {task_id!r}")
        return Door(task_id)
