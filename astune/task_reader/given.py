"""Tasks that a program gives, in place of the name of a file: rows, `Task`s, or a `datasets.Dataset`.

>>> from astune.config.tasks import TaskReaderConfig
>>> reader = reader_of_given([{"question": "6 * 7?", "answer": "42"}])
>>> reader(TaskReaderConfig()).read("training")[0].answer
'42'
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from astune.errors import TaskError
from astune.task_reader.huggingface import rows_of_dataset
from astune.task_reader.table_reader import TableReader
from astune.task_reader.task_reader_base import Row, Rows, Split
from astune.types import Task


@dataclass(frozen=True)
class GivenRows:
    """Rows in memory. `name` is the argument that they were given as."""

    entries: Sequence[Row]
    name: str

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, index: int) -> Row:
        return self.entries[index]

    def place(self, index: int) -> str:
        return f"{self.name}[{index}]"


def reader_of_given(tasks: object, validation_tasks: object = None) -> type[TableReader]:
    """A reader class of these tasks. Raises `TaskError` for what holds none."""
    given: Mapping[Split, object] = {"training": tasks, "validation": validation_tasks}
    names: Mapping[Split, str] = {"training": "tasks", "validation": "validation_tasks"}
    tables = {split: _table(value, names[split]) for split, value in given.items() if value is not None}

    class GivenTasks(TableReader):
        def rows(self, split: Split) -> Rows | None:
            table = tables.get(split)
            return None if isinstance(table, list) else table

        def read(self, split: Split) -> Sequence[Task]:
            table = tables.get(split)
            return table if isinstance(table, list) else super().read(split)

    GivenTasks.__name__ = "tasks"  # as errors call it
    return GivenTasks


def _table(value: object, name: str) -> Rows | list[Task]:
    if (rows := rows_of_dataset(value, name)) is not None:
        if len(rows) == 0:
            raise TaskError(f"{name}: the data set is empty")
        return rows
    if isinstance(value, Mapping) or not isinstance(value, Iterable):
        raise TaskError(
            f"{name}: got {value!r:.80} of type {type(value).__name__}; expected a list of dicts, a path, a "
            "datasets.Dataset or a task reader"
        )
    entries = list(value)
    if not entries:
        raise TaskError(f"{name}: the list is empty")
    kind = Task if isinstance(entries[0], Task) else Mapping
    for index, entry in enumerate(entries):
        if not isinstance(entry, kind):
            raise TaskError(
                f"{name}[{index}]: got {entry!r:.80} of type {type(entry).__name__}; expected "
                f"{'a Task, as the first is' if kind is Task else 'a dict'}"
            )
    return entries if kind is Task else GivenRows(entries, name)
