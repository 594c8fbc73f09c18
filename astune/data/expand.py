"""Make tasks from a few: numbers, names, wording and difficulty are varied, and each answer is checked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from astune.data.checks import Checks
from astune.data.grow import PER_CALL
from astune.data.made import Dropped, Made
from astune.data.prompts import VARY, Proposals, vary_messages
from astune.errors import TaskError
from astune.support.words import signs_of
from astune.types import Task

COPIED = ("scorer",)
"""Columns of a seed that its variants have too: the judge that the task names."""


@dataclass(frozen=True)
class Seed:
    """A task that others are made from; `number` is its place among the seeds, so that not all begin with one kind."""

    task: Task
    number: int
    checks: Checks

    @property
    def name(self) -> str:
        return self.task.task_id

    @property
    def text(self) -> str:
        return self.task.query

    def ask(self, visit: int) -> tuple[str, list[dict[str, str]]]:
        """The kind of variants of a visit, and the question."""
        kind = [*VARY][(self.number + visit) % len(VARY)]
        return kind, vary_messages(self.task.query, self.task.answer, kind, PER_CALL, visit)

    async def propose(self, visit: int) -> list[Made]:
        kind, messages = self.ask(visit)
        reply = await self.checks.asking.reply(messages, Proposals)
        if reply is None:
            return []
        lineage = {"seed": self.task.task_id, "kind": kind, "model": reply.model, "prompt": digest(messages)}
        columns = {name: self.task.metadata[name] for name in COPIED if name in self.task.metadata}
        return [Made(one.question.strip(), one.answer.strip(), lineage, columns) for one in reply.value.tasks]

    async def prove(self, made: Made) -> Made | Dropped:
        proved = await self.checks.prove(made)
        return await self.checks.try_policy(proved) if isinstance(proved, Made) else proved


def seeds_of(tasks: Sequence[Task], checks: Checks) -> list[Seed]:
    """Raises TaskError for tasks that cannot be seeds, and for seeds that contradict each other."""
    if not tasks:
        raise TaskError("there are no tasks to make others from")
    answers: dict[tuple[str, ...], Task] = {}
    for task in tasks:
        if task.env_type is not None or len(task.messages) > 1:
            what = "a conversation" if task.env_type is None else f"an environment ({task.env_type})"
            raise TaskError(f"{_place(task)}: a task with {what} cannot be varied, only one with a question alone")
        first = answers.setdefault(signs_of(task.query), task)
        if signs_of(first.answer or "") != signs_of(task.answer or ""):
            raise TaskError(
                f"{_place(task)}: the same question as {_place(first)} with another answer, {task.answer!r:.60} and "
                f"{first.answer!r:.60}: take one out"
            )
    return [Seed(task, number, checks) for number, task in enumerate(tasks)]


def digest(value: Any) -> str:
    """16 hexadecimal digits of what JSON can hold: of a prompt, by which a task's lineage names it."""
    return hashlib.sha256(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")).hexdigest()[:16]


def _place(task: Task) -> str:
    return task.place or f"task {task.task_id!r}"
