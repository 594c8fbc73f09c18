"""The base of readers of tables: a row becomes a `Task` when it is looked at."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import overload

from astune.config.tasks import TaskReaderConfig
from astune.errors import TaskError
from astune.task_reader.rows import Record, RowMapping
from astune.task_reader.task_reader_base import Rows, Split
from astune.types import Task


class SourceError(TaskError):
    """The source of rows itself fails, so no row after it can be read either; never skipped as a bad record."""


class TableReader(ABC):
    """A reader that only has to say where the rows are; `astune.task_reader.fields` says what in them means what.

    class MyReader(TableReader):
        def rows(self, split):
            return MyRows(...) if split == "training" else None

    Raises `ConfigError` at birth for fields that cannot be read.
    """

    def __init__(self, config: TaskReaderConfig) -> None:
        self.config = config
        self._mapping = RowMapping(config.fields)

    @abstractmethod
    def rows(self, split: Split) -> Rows | None:
        """The table of a split; None for a validation split that is not configured. Raises `TaskError`."""

    def read(self, split: Split) -> Sequence[Task]:
        rows = self.rows(split)
        return [] if rows is None else TableTasks(rows, self._mapping)


class TableTasks(Sequence[Task]):
    """The tasks of a table, each made when it is looked at; none is kept.

    Looking at a bad row raises `TaskError` that begins with its place. Going through them asks for one row after the
    other until `IndexError`, and never for the number of rows, so a table may find its end as it goes.
    """

    def __init__(self, rows: Rows, mapping: RowMapping) -> None:
        self.rows = rows
        self._mapping = mapping

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> list[Task]: ...
    def __getitem__(self, index: int | slice) -> Task | list[Task]:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self)))]
        if index < 0:
            index += len(self)
            if index < 0:
                raise IndexError("task index out of range")
        return self.record(index).task

    def record(self, index: int) -> Record:
        """The task at `index`, counted from 0, with the row it comes from."""
        row = self.rows[index]
        return self._mapping.record(row, self.rows.place(index))
