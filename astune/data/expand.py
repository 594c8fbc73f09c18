"""Make tasks from a few: numbers, names, wording and difficulty are varied, and each answer is checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from astune.data.checks import Checks, say_same
from astune.data.grow import PER_CALL, Parent
from astune.data.made import Dropped, Made
from astune.data.near import name_task
from astune.data.prompts import REWORD, VARY, Message, ProposedTask, vary_messages
from astune.errors import TaskError
from astune.support.words import signs_of
from astune.task_reader.held_out import world_of
from astune.types import Task

COPIED = ("scorer", "answer_schema")
"""Columns of a seed that its variants have too: the judge that the task names."""
NOT_COPIED = {"task_id", "id", "query", "question", "answer", "messages", "lineage"}
"""Columns that its variants in the same world do not have."""


@dataclass(frozen=True)
class Seed(Parent):
    """A task that others are made from."""

    task: Task

    def ask(self, kind: str, visit: int) -> list[Message]:
        return vary_messages(self.task.query, self.task.answer, kind, PER_CALL, visit)

    def make(self, proposed: ProposedTask, lineage: dict[str, Any]) -> Made:
        task, row, question = self.task, self.task.metadata, proposed.question.strip()
        lineage = {"seed": self.name, **lineage}
        if task.env_type is None:
            columns = {name: row[name] for name in COPIED if name in row}
            return Made(question, proposed.answer.strip(), lineage, columns)
        columns = {name: value for name, value in row.items() if name not in NOT_COPIED}
        columns |= {"env_type": task.env_type, "env_task_id": world_of(task)}
        return Made(question, task.answer or "", lineage, columns)

    async def prove(self, made: Made) -> Made | Dropped:
        proved = await self.checks.prove(made, names=None if self.task.env_type is None else ("agent",))
        return await self.checks.finish(proved) if isinstance(proved, Made) else proved


def seeds_of(tasks: Sequence[Task], checks: Checks) -> list[Seed]:
    """Raises TaskError for tasks that cannot be seeds, and for seeds that contradict each other."""
    if not tasks:
        raise TaskError("there are no tasks to make others from")
    answers: dict[tuple[str, ...], Task] = {}
    for task in tasks:
        where, world = name_task(task), task.env_type
        if len(task.messages) > 1 or not task.query.strip():
            what = "a conversation" if task.messages else f"a question that its environment ({world}) asks"
            raise TaskError(f"{where}: a task with {what} cannot be varied, only one with its own question alone")
        if world is not None and "agent" not in checks.config.checks:
            raise TaskError(
                f"{where}: a task with an environment ({world}) is checked in it: set checks: [agent] in "
                "astune.task_reader.augment, and agent to the model that plays"
            )
        first = answers.setdefault(signs_of(task.query), task)
        if world is None and not say_same(first.answer or "", task.answer or ""):
            raise TaskError(
                f"{where}: the same question as {name_task(first)} with another answer, {task.answer!r:.60} and "
                f"{first.answer!r:.60}: take one out"
            )
    kinds = [[*VARY] if task.env_type is None else [REWORD] for task in tasks]  # a world is as it is
    return [Seed(task.task_id, task.query, n, kinds[n], checks, task) for n, task in enumerate(tasks)]
