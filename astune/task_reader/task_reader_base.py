"""The protocols of task readers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

from astune.types import Task

Split: TypeAlias = Literal["training", "validation"]
SPLITS: tuple[Split, ...] = ("training", "validation")
""""validation" is the name that configurations have for the held-out tasks."""
Row: TypeAlias = Mapping[str, Any]


@runtime_checkable
class TaskReader(Protocol):
    """A source of tasks.

    Two calls with the same split give equal tasks in the same order. Limits, filters, held-out fractions and the
    checks of ids and overlaps are applied to what any reader returns (see `task_sets`).
    """

    def read(self, split: Split) -> Sequence[Task]:
        """The tasks of `split`, made when they are looked at if there are many; empty for a validation split that is
        not configured. Raises `TaskError`."""


class Rows(Protocol):
    """A table, of which nothing is parsed before it is asked for."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Row:
        """Raises `TaskError` that begins with the place."""

    def place(self, index: int) -> str:
        """The place of the row, as `train.jsonl:17`, counted from 1."""
