"""Tasks that reasoning-gym makes: as many as wanted, without a download, each with a verifier (`ReasoningGymJudge`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from astune.config.tasks import TaskReaderConfig
from astune.errors import ConfigError, TaskError
from astune.task_reader.table_reader import SourceError, TableReader
from astune.task_reader.task_reader_base import Row, Rows, Split
from astune.workers.reasoning_gym_client import GymTask, TaskMaker

KEY = "astune.task_reader.reasoning_gym"


class TaskReaderReasoningGym(TableReader):
    """Reads `astune.task_reader.reasoning_gym`: of each data set its tasks number 0, 1, 2, ..., the data sets in turn.

    >>> config = TaskReaderConfig(type="reasoning_gym", reasoning_gym={"datasets": {"gcd": {}, "maze": {}}})
    >>> [task.task_id for task in TaskReaderReasoningGym(config).read("validation")][:4]
    ['gcd-0', 'maze-0', 'gcd-1', 'maze-1']

    The held-out tasks come first, so more training tasks change none of them. A question that a data set has asked
    before is left out: the two splits share none. Raises `ConfigError` for an unknown data set or option, `TaskError`
    where there are not enough different questions, and `MissingDependency`.
    """

    def __init__(self, config: TaskReaderConfig) -> None:
        super().__init__(config)
        self._source = config.reasoning_gym
        if not self._source.datasets:
            raise ConfigError(f"{KEY}.datasets is empty: name at least one, as {{countdown: {{max_numbers: 4}}}}")

    def rows(self, split: Split) -> Rows | None:
        held_out, trained_on = self._source.validation_tasks, self._source.training_tasks
        if split == "validation":
            return DrawnRows(self._tables, 0, held_out) if held_out else None
        return DrawnRows(self._tables, held_out, trained_on)

    @cached_property
    def _tables(self) -> tuple[DrawnTable, ...]:
        """One for each data set, with its share of all tasks."""
        maker, datasets = TaskMaker(), self._source.datasets
        tasks = self._source.training_tasks + self._source.validation_tasks
        tables = []
        for turn, (name, options) in enumerate(datasets.items()):
            share = len(range(turn, tasks, len(datasets)))
            tables.append(
                DrawnTable(maker.draw(name, options, self._source.seed, share, f"{KEY}.datasets.{name}"), share)
            )
        return tuple(tables)


@dataclass
class DrawnTable:
    """The `count` tasks of one data set, drawn up to the last that was asked for. After the last of all there is no use
    for the process that makes them."""

    source: Iterator[GymTask]
    count: int
    drawn: list[GymTask] = field(default_factory=list)

    def __getitem__(self, index: int) -> GymTask:
        while len(self.drawn) <= index:
            self.drawn.append(next(self.source))
            if len(self.drawn) == self.count:
                self.source = iter(())
        return self.drawn[index]


@dataclass(frozen=True)
class DrawnRows:
    """`count` tasks of the tables in turn, from the one at `start`."""

    tables: tuple[DrawnTable, ...]
    start: int
    count: int

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Row:
        task = self._task(index)
        return {
            "task_id": f"{task.dataset}-{task.index}",
            "question": task.question,
            "answer": task.answer,
            "dataset": task.dataset,
            "entry": task.entry,
        }

    def place(self, index: int) -> str:
        task = self._task(index)
        return f"{task.dataset}:{task.index + 1}"

    def _task(self, index: int) -> GymTask:
        if not 0 <= index < self.count:
            raise IndexError("no such task")
        turn, table = divmod(self.start + index, len(self.tables))
        try:
            return self.tables[table][turn]
        except TaskError as error:
            raise SourceError(str(error)) from error
