"""The tasks of a run: what a reader gives, selected and checked.

sets = read_task_sets(config.astune.task_reader)
sets.training[0].query
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import overload

from astune.config.evaluation import HeldOutSetConfig
from astune.config.tasks import FieldsConfig, JsonlFile, TaskReaderConfig
from astune.errors import TaskError
from astune.task_reader import make_reader
from astune.task_reader.held_out import find_held_out_limit, question_number
from astune.task_reader.jsonl import read_jsonl
from astune.task_reader.rows import RowMapping
from astune.task_reader.task_reader_base import Split
from astune.task_reader.task_source import TaskSource
from astune.types import Task

Look = Callable[[Task], None]


@dataclass(frozen=True, eq=False)
class TaskSet(Sequence[Task]):
    """The selected tasks of a split. Each is made when it is looked at; what is kept of it is its position.

    A part, as `tasks[:10]`, is a `TaskSet` too, with nothing skipped or filtered.
    """

    tasks: Sequence[Task] = field(repr=False)
    """All tasks, as the reader gives them."""
    positions: Sequence[int] = field(repr=False)
    """The positions of the selected ones among them."""
    new_ids: Mapping[int, str] = field(default_factory=dict, repr=False)
    """By position, where the task has another id than the reader gave it."""
    skipped: tuple[str, ...] = ()
    """Errors of the bad records that were left out; each begins with its place."""
    filtered: int = 0
    """Rows that the filter left out."""

    def __len__(self) -> int:
        return len(self.positions)

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> TaskSet: ...
    def __getitem__(self, index: int | slice) -> Task | TaskSet:
        if isinstance(index, slice):
            return TaskSet(self.tasks, self.positions[index], self.new_ids)
        return self._at(self.positions[index])

    def __iter__(self) -> Iterator[Task]:
        return map(self._at, self.positions)

    def _at(self, position: int) -> Task:
        return _rename(self.tasks[position], self.new_ids.get(position))


@dataclass(frozen=True)
class TaskSets:
    training: TaskSet
    held_out: TaskSet
    repeated_ids: tuple[str, ...] = ()
    """Ids that are there twice, where the configuration says warn; each begins with the place of the first."""
    overlap: tuple[str, ...] = ()
    """Questions that are trained on and held out, likewise."""
    named: Mapping[str, TaskSet] = field(default_factory=dict)
    """The sets of `astune.evaluation.sets`."""

    @property
    def warnings(self) -> tuple[str, ...]:
        return (*self.repeated_ids, *self.overlap)

    def of(self, split: Split) -> TaskSet:
        return self.training if split == "training" else self.held_out


def forgiving(config: TaskReaderConfig) -> TaskReaderConfig:
    """`config` for a caller that lists all that is wrong with the records: none of it is an error."""
    return config.model_copy(update={"on_bad_record": "skip", "on_duplicate_id": "warn", "on_overlap": "warn"})


def read_made(config: TaskReaderConfig) -> list[Task]:
    """The tasks of `augment.file`, whose columns are those that `astune data` writes; none where it is not set."""
    if config.augment.file is None:
        return []
    mapping = RowMapping(FieldsConfig())
    return [mapping.record(row, place).task for place, row in read_jsonl(Path(config.augment.file))]


def read_task_sets(
    config: TaskReaderConfig, look: Look | None = None, named: Mapping[str, HeldOutSetConfig] | None = None
) -> TaskSets:
    """The sets of a run: those of the reader, and behind its training tasks those of `augment.file`.

    Raises as `_read_sets` does, and TaskError for a made task that is held out."""
    sets, made = _read_sets(config, look, named), read_made(config)
    if not made:
        return sets
    numbers = {question_number(task, config.split_seed): task for task in made}
    for held_out in chain(sets.held_out, *sets.named.values()):
        if (task := numbers.get(question_number(held_out, config.split_seed))) is not None:
            where = held_out.place or held_out.task_id
            raise TaskError(f"{where}: is trained on too, as {task.place}, which was made: take it out there")
    if look is not None:
        for task in made:
            look(task)
    both = [*sets.training, *made]
    return replace(sets, training=replace(sets.training, tasks=both, positions=range(len(both)), new_ids={}))


def _read_sets(config: TaskReaderConfig, look: Look | None, named: Mapping[str, HeldOutSetConfig] | None) -> TaskSets:
    """Reads and checks every record once: bad ones, the filter, ids, the held-out fraction, limits, and questions that
    are both trained on and held out, in this order. Without a fraction nothing after a limit is looked at.

    What was held out of the training tasks has nothing skipped or filtered: that counts for training. `look` is called
    with each task that stays, so that nobody has to read them all again. `named` are further sets of held-out tasks.
    Raises `TaskError` that begins with the place of what is wrong, and what `look` raises.
    """
    training, held_out = _sources(config)
    if _is_to_be_divided(config, held_out):
        sets, chosen = _divide(training, config, look)
        return _with_named(sets, training, chosen, config, look, named or {})
    numbered = len(held_out.tasks) > 0
    chosen = _choose(training, config, config.max_training_tasks, look, numbered=numbered or bool(named))
    others = _choose(held_out, config, config.max_validation_tasks, look, numbered=numbered)
    overlap = _overlap(training, chosen, held_out, others)
    _refuse_overlap(overlap, config)
    sets = TaskSets(
        _task_set(training, chosen.positions),
        _task_set(held_out, others.positions),
        (*training.warnings(), *held_out.warnings()),
        tuple(overlap),
    )
    return _with_named(sets, training, chosen, config, look, named or {})


def stream_tasks(config: TaskReaderConfig, split: Split) -> Iterator[Task]:
    """The tasks of `read_task_sets`, in its order, each as soon as it is read; what comes after it is not checked, nor
    whether the other split has the same question. Where a fraction is held out, all are read before the first."""
    training, held_out = _sources(config)
    if _is_to_be_divided(config, held_out):
        yield from _divide(training, config, None)[0].of(split)
    else:
        source, limit = (
            (training, config.max_training_tasks) if split == "training" else (held_out, config.max_validation_tasks)
        )
        for selected in islice(source, limit):
            yield _rename(selected.task, selected.new_id)
    if split == "training":
        yield from read_made(config)


@dataclass(frozen=True)
class _Chosen:
    """Positions of the selected tasks of a source, and the numbers of their questions, if those were asked for."""

    positions: array[int] = field(default_factory=lambda: array("Q"))
    questions: array[int] = field(default_factory=lambda: array("Q"))


def _sources(config: TaskReaderConfig) -> tuple[TaskSource, TaskSource]:
    reader = make_reader(config)
    return TaskSource(reader, "training", config), TaskSource(reader, "validation", config)


def _is_to_be_divided(config: TaskReaderConfig, held_out: TaskSource) -> bool:
    """True if the held-out tasks are a part of the training tasks, as they have no source of their own."""
    return config.validation_fraction is not None and len(held_out.tasks) == 0


def _choose(
    source: TaskSource, config: TaskReaderConfig, limit: int | None, look: Look | None, *, numbered: bool
) -> _Chosen:
    chosen = _Chosen()
    for selected in islice(source, limit):
        if look is not None:
            look(selected.task)
        chosen.positions.append(selected.position)
        if numbered:
            chosen.questions.append(question_number(selected.task, config.split_seed))
    return chosen


def _divide(source: TaskSource, config: TaskReaderConfig, look: Look | None) -> tuple[TaskSets, _Chosen]:
    """Divide the training source in two parts; the second value is what is trained on."""
    assert config.validation_fraction is not None
    chosen = _choose(source, config, None, look, numbered=True)
    below = find_held_out_limit(chosen.questions, config.validation_fraction)
    trained, held_out = _Chosen(), array("Q")
    for position, question in zip(chosen.positions, chosen.questions, strict=True):
        if question < below:
            held_out.append(position)
        elif config.max_training_tasks is None or len(trained.positions) < config.max_training_tasks:
            trained.positions.append(position)
            trained.questions.append(question)
    sets = TaskSets(
        _task_set(source, trained.positions),
        TaskSet(source.tasks, held_out[: config.max_validation_tasks], source.new_ids),
        tuple(source.warnings()),
    )
    return sets, trained


def _with_named(
    sets: TaskSets,
    training: TaskSource,
    chosen: _Chosen,
    config: TaskReaderConfig,
    look: Look | None,
    named: Mapping[str, HeldOutSetConfig],
) -> TaskSets:
    """`sets` and those with a name, checked as the held-out tasks without one."""
    read, repeated, overlap = {}, list(sets.repeated_ids), list(sets.overlap)
    for name, asked in named.items():
        own = reader_of(config, asked)
        source = TaskSource(make_reader(own), "validation", own)
        others = _choose(source, config, own.max_validation_tasks, look, numbered=True)
        if not others.positions:
            raise TaskError(f"astune.evaluation.sets.{name}: the set has no tasks")
        found = _overlap(training, chosen, source, others)
        _refuse_overlap(found, config)
        read[name] = _task_set(source, others.positions)
        repeated += source.warnings()
        overlap += found
    return replace(sets, named=read, repeated_ids=tuple(repeated), overlap=tuple(overlap))


def _task_set(source: TaskSource, positions: array[int]) -> TaskSet:
    return TaskSet(source.tasks, positions, source.new_ids, tuple(source.skipped), source.filtered)


def _overlap(training: TaskSource, chosen: _Chosen, held_out: TaskSource, others: _Chosen) -> list[str]:
    """A warning of questions that are both trained on and held out, if there are any."""
    both = set(others.questions).intersection(chosen.questions)
    if not both:
        return []
    shared = [index for index, question in enumerate(others.questions) if question in both]
    first_held_out = others.positions[shared[0]]
    first_trained = chosen.positions[chosen.questions.index(others.questions[shared[0]])]
    return [
        f"{held_out.place_at(first_held_out)}: {len(shared):,} of {len(others.positions):,} held-out tasks are "
        f"trained on too, this one as {training.place_at(first_trained)}: the evaluation would show memory, not skill"
    ]


def _refuse_overlap(overlap: Sequence[str], config: TaskReaderConfig) -> None:
    if overlap and config.on_overlap == "error":
        raise TaskError(f"{overlap[0]}. Take them out of one of the two, or set astune.task_reader.on_overlap: warn")


def _rename(task: Task, new_id: str | None) -> Task:
    return task if new_id is None else replace(task, task_id=new_id)


def reader_of(reader: TaskReaderConfig, chosen: HeldOutSetConfig) -> TaskReaderConfig:
    """The configuration of a reader whose held-out tasks are those of the set."""
    changed: dict[str, object] = {
        "filter": chosen.filter,
        "max_validation_tasks": chosen.max_tasks,
        "validation_fraction": None,
    }
    if chosen.file_path is not None:
        of_file = {"validation": JsonlFile(file_path=chosen.file_path)}
        changed |= {"type": "jsonl", "jsonl": reader.jsonl.model_copy(update=of_file)}
    elif chosen.split is not None:
        split = {"validation_split": chosen.split}
        changed["huggingface"] = reader.huggingface.model_copy(update=split)
        changed["env_service"] = reader.env_service.model_copy(update=split)
    return reader.model_copy(update=changed)
