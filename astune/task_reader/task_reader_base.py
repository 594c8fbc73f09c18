"""The protocol of task readers."""

from __future__ import annotations

from typing import Literal, Protocol, TypeAlias, runtime_checkable

from astune.types import Task

Split: TypeAlias = Literal["training", "validation"]


@runtime_checkable
class TaskReader(Protocol):
    """Where tasks come from.

    Two calls with the same split give equal tasks in the same order; ids are unique within a split.
    """

    def read(self, split: Split) -> list[Task]:
        """All tasks of `split`; empty for a validation split that is not configured. Raises `TaskError`."""
