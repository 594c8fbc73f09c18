"""Select tasks from one source: leave out bad records and those that the filter refuses, and make ids unique."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterator, Sequence
from itertools import count
from typing import NamedTuple

from astune.config.tasks import TaskReaderConfig
from astune.errors import PluginError, TaskError
from astune.task_reader.rows import Record
from astune.task_reader.table_reader import SourceError, TableTasks
from astune.task_reader.task_filter import KEY as FILTER_KEY
from astune.task_reader.task_filter import TaskFilter
from astune.task_reader.task_reader_base import Split, TaskReader
from astune.types import Task

logger = logging.getLogger(__name__)
RECORDS_PER_MESSAGE = 100_000
BUCKETS = 1 << 15


class UniqueIds:
    """Ids that no other task of the split has. Keeps 64 bits of each, about 16 bytes where a set of texts takes 100.

    >>> ids = UniqueIds()
    >>> [name if ids.add(name) else ids.add_copy(name) for name in ("a", "b", "a", "a")]
    ['a', 'b', 'a-2', 'a-3']

    Two of a million ids share their 64 bits with a chance of 3 in 100 million; the later then counts as a copy.
    """

    def __init__(self) -> None:
        self._buckets: dict[int, array[int]] = {}
        self._copies: dict[str, int] = {}

    def add(self, task_id: str) -> bool:
        """Add an id; False if it was there before."""
        number = hash(task_id)  # differs between processes, and does not leave this one
        bucket = self._buckets.get(number % BUCKETS)
        if bucket is None:
            self._buckets[number % BUCKETS] = array("q", [number])
        elif number in bucket:
            return False
        else:
            bucket.append(number)
        return True

    def add_copy(self, task_id: str) -> str:
        """The id with -2 after it, or with the next number if that is taken."""
        while True:
            number = self._copies.get(task_id, 1) + 1
            self._copies[task_id] = number
            if self.add(copy := f"{task_id}-{number}"):
                return copy


class Selected(NamedTuple):
    """A task that stays. `task` is as the reader gave it; `new_id` is the id it gets instead of its own, if any."""

    position: int
    task: Task
    new_id: str | None


class TaskSource:
    """The tasks that a reader gives for a split. Iterating selects among them and fills in `skipped`, `filtered` and
    `new_ids`; it is done once.

    Raises `TaskError` where nothing is left at the end, unless it is a validation split without a source.
    """

    def __init__(self, reader: TaskReader, split: Split, config: TaskReaderConfig) -> None:
        self._filter = None if config.filter is None else TaskFilter(config.filter)
        self._config = config
        self._split = split
        self._unique = UniqueIds()
        self._repeated = 0
        self._first_repeated = ""
        self.skipped: list[str] = []
        self.filtered = 0
        self.new_ids: dict[int, str] = {}
        self.tasks = reader.read(split)
        if not isinstance(self.tasks, Sequence):
            raise PluginError(
                f"astune.task_reader.type: read({split!r}) of {config.type!r} returned a "
                f"{type(self.tasks).__name__}, expected a sequence of tasks, such as a list"
            )

    def __iter__(self) -> Iterator[Selected]:
        empty = True
        for position in count():
            if position and position % RECORDS_PER_MESSAGE == 0:
                logger.info("%s tasks: %s records read", self._split, f"{position:,}")
            try:
                record = self._record(position)
                kept = self._keeps(record, position)
            except IndexError:
                break
            except SourceError:
                raise
            except TaskError as error:
                if self._config.on_bad_record == "error":
                    raise
                self.skipped.append(str(error))
                continue
            if kept:
                empty = False
                yield Selected(position, record.task, self._new_id(record, position))
            else:
                self.filtered += 1
        if empty:
            self._check_empty(position)

    def place_at(self, position: int) -> str:
        return self.place(self.tasks[position], position)

    def place(self, task: Task, position: int) -> str:
        return task.place or f"{self._split} task {position + 1}"

    def warnings(self) -> list[str]:
        """One warning if ids were there twice, else none."""
        more = f", and so for {self._repeated - 1:,} more" if self._repeated > 1 else ""
        return [f"{self._first_repeated}{more}"] if self._repeated else []

    def _record(self, position: int) -> Record:
        if isinstance(self.tasks, TableTasks):
            return self.tasks.record(position)
        task = self.tasks[position]
        if not isinstance(task, Task):
            raise PluginError(
                f"astune.task_reader.type: read({self._split!r}) of {self._config.type!r} gave a "
                f"{type(task).__name__}, expected astune.Task"
            )
        return Record(task, task.metadata, has_id=True)

    def _keeps(self, record: Record, position: int) -> bool:
        return self._filter is None or self._filter.keeps(record, self.place(record.task, position))

    def _new_id(self, record: Record, position: int) -> str | None:
        """None where the task's own id is new. A copy of a row without id is as good as any; one of an id that was
        given is an error or a warning."""
        task = record.task
        if self._unique.add(task.task_id):
            return None
        new_id = self._unique.add_copy(task.task_id)
        if record.has_id:
            self._note_repeated(task, position, new_id)
        self.new_ids[position] = new_id
        return new_id

    def _note_repeated(self, task: Task, position: int, new_id: str) -> None:
        if not self._repeated:
            before = self._first_place_of(task.task_id, position)
            if before is None:  # what was there is the number of a copy
                return
            said = f"{self.place(task, position)}: task id {task.task_id!r} is already used at {before}"
            if self._config.on_duplicate_id == "error":
                raise TaskError(f"{said}; ids must be unique")
            self._first_repeated = f"{said}; it is called {new_id!r} here"
        self._repeated += 1

    def _first_place_of(self, task_id: str, stop: int) -> str | None:
        """The place of the task before `stop` whose row has this id. Reads the source again, as ids are not kept."""
        for position in range(stop):
            try:
                record = self._record(position)
                if record.task.task_id == task_id and self._keeps(record, position):
                    return self.place(record.task, position)
            except TaskError:
                continue
        return None

    def _check_empty(self, records: int) -> None:
        """Says why nothing is left of so many records."""
        if records == 0 and self._split == "training":
            raise TaskError(f"astune.task_reader: type {self._config.type!r} gives no training tasks")
        if self.skipped and not self.filtered:
            raise TaskError(f"all {records:,} {self._split} records are bad, the first: {self.skipped[0]}")
        if records:
            bad = f", and {len(self.skipped):,} are bad" if self.skipped else ""
            raise TaskError(
                f"{FILTER_KEY}: {self._config.filter!r} leaves none of the {records:,} {self._split} records{bad}"
            )
