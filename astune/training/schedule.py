"""The tasks or examples of each step, and which steps are due for what happens every few."""

from __future__ import annotations

import math
import random
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Generic, TypeVar

from astune.algorithm.curriculum import CURRICULUM_FILE, Draw, Memory, count_pools, record_group
from astune.config.schema import AstuneConfig, TrainerConfig
from astune.context_tracker.model_dir import load_chat_format, resolve_base_dir
from astune.errors import ConfigError, RunFolderError
from astune.examples.method import example_method_of
from astune.examples.read import TrainingExample, read_examples
from astune.types import Group, Sample, Task

Item = TypeVar("Item")
HELD_OUT = "astune.trainer.held_out_examples"


class Schedule(Generic[Item]):
    """Seeded shuffles of the items, one per epoch, cut into steps of `astune.trainer.tasks_per_step`. What a step gets
    depends on its number alone, so a resumed run continues the same order, and the order is the same on every platform.
    What is left over at the end of an epoch waits for the next shuffle, so no step has the same item twice. Without
    `shuffle` every epoch goes through the items as they stand. `noun` is what messages call the items."""

    def __init__(
        self, items: Sequence[Item], trainer: TrainerConfig, seed: int, noun: str, *, shuffle: bool = True
    ) -> None:
        if len(items) < trainer.tasks_per_step:
            raise ConfigError(
                f"astune.trainer.tasks_per_step is {trainer.tasks_per_step}, but there are only {len(items)} {noun}"
            )
        self._items, self._seed, self._shuffle = items, seed, shuffle
        self._order: tuple[int, Sequence[int]] | None = None
        self._per_step = trainer.tasks_per_step
        self.steps_per_epoch = len(items) // trainer.tasks_per_step
        epochs = trainer.total_epochs
        limits = [trainer.total_steps, None if epochs is None else epochs * self.steps_per_epoch]
        self.first = 0
        """The number of its first step: the steps of the stages before it."""
        self.steps = min(limit for limit in limits if limit is not None)

    @property
    def total_steps(self) -> int:
        """The steps of the run up to the end of this schedule."""
        return self.first + self.steps

    def at(self, step: int) -> list[Item]:
        """The items of step `step`, counted from 0."""
        return [self._items[index] for index in self._choose(step)]

    def further(self, step: int) -> Iterator[Item]:
        """Items beyond those of step `step`, in an order that depends on its number alone, none twice; they may be
        those of other steps."""
        used = set(self._choose(step))
        draw = random.Random(f"{self._seed}/further/{step - self.first}")
        while len(used) < len(self._items):
            index = draw.randrange(len(self._items))
            if index not in used:
                used.add(index)
                yield self._items[index]

    def observe(self, step: int, groups: Sequence[Group]) -> dict[str, float]:
        """Take note of what was played in step `step`, which is about to count. Returns figures."""
        return {}

    def save(self, directory: Path, step: int) -> None:
        """Write what `load` needs to go on with step `step` as if never stopped."""

    def load(self, directory: Path) -> None:
        """Go on from what `save` wrote. Raises RunFolderError where that is broken, or of other tasks."""

    def _choose(self, step: int) -> Sequence[int]:
        epoch, place = divmod(step - self.first, self.steps_per_epoch)
        return self._order_of(epoch)[place * self._per_step : (place + 1) * self._per_step]

    def _order_of(self, epoch: int) -> Sequence[int]:
        """The numbers of the items in the order of that epoch. The last one is kept: a million items take a second."""
        if not self._shuffle:
            return range(len(self._items))
        if self._order is None or self._order[0] != epoch:
            order = array("Q", range(len(self._items)))
            random.Random(f"{self._seed}/{epoch}").shuffle(order)
            self._order = epoch, order
        return self._order[1]


class TaskSchedule(Schedule[Task]):
    """Which tasks a step trains on."""

    def __init__(self, tasks: Sequence[Task], config: AstuneConfig) -> None:
        shuffle = config.task_reader.shuffle
        super().__init__(tasks, config.trainer, config.seed, noun="training tasks", shuffle=shuffle)

    def tasks(self, step: int) -> list[Task]:
        """Tasks of step `step`, counted from 0."""
        return self.at(step)


class Curriculum(TaskSchedule):
    """The tasks of a step by what the policy did on them (`astune.trainer.curriculum`).

    Invariant: what a step gets depends on the steps that are trained before its first episode may begin, and on no
    later one, however far rollouts are ahead: the `synchronizer.max_staleness` steps before it are not looked at, and
    their tasks left alone. So a run that is resumed, or plays ahead, draws what it would have drawn.
    """

    def __init__(self, tasks: Sequence[Task], config: AstuneConfig) -> None:
        super().__init__(tasks, config)
        self._keys, self._ahead = config.trainer.curriculum, config.synchronizer.max_staleness or 0
        self._memory = Memory(self._keys.fade, self._ahead)
        self._drawn: dict[int, list[int]] = {}

    def further(self, step: int) -> Iterator[Task]:
        return (self._items[index] for index in self._draw(step)[self._per_step :])

    def observe(self, step: int, groups: Sequence[Group]) -> dict[str, float]:
        played = zip(self._draw(step), groups, strict=False)  # as they were handed out, one after the other
        self._memory.add(step, [(index, record_group(group, step)) for index, group in played])
        self._drawn = {other: order for other, order in self._drawn.items() if other > step}
        return count_pools(self._memory.before(), len(self._items))

    def save(self, directory: Path, step: int) -> None:
        self._memory.save(directory, step)

    def load(self, directory: Path) -> None:
        self._memory = replace(Memory.load(directory), fade=self._keys.fade, ahead=self._ahead)
        for index, record in self._memory.before().items():
            now = self._items[index].task_id if index < len(self._items) else None
            if now != record.task_id:
                raise RunFolderError(
                    f"{directory / CURRICULUM_FILE}: training task {index + 1} was {record.task_id!r} and is {now!r}; "
                    "astune.trainer.curriculum goes on with the tasks that it began with, in their order"
                )

    def _choose(self, step: int) -> Sequence[int]:
        return self._draw(step)[: self._per_step]

    def _draw(self, step: int) -> list[int]:
        """All tasks in the order of the draw of that step."""
        if step not in self._drawn:
            steps = range(max(self.first, step - self._ahead), step)
            waiting = {index for other in steps for index in self._find_handed_out(other)}
            draw = Draw(self._keys, self._per_step, step - self.first, self._seed)
            self._drawn[step] = draw.order(self._memory.before(step - self._ahead), self._order_of(0), waiting)
        return self._drawn[step]

    def _find_handed_out(self, step: int) -> list[int]:
        done = self._memory.recent.get(step)
        return list(self._choose(step)) if done is None else [index for index, _ in done[: self._per_step]]


def schedule_tasks(tasks: Sequence[Task], config: AstuneConfig) -> TaskSchedule:
    """Schedule the tasks of a run as `astune.trainer.curriculum` says."""
    return (Curriculum if config.trainer.curriculum.enabled else TaskSchedule)(tasks, config)


class ExampleSchedule(Schedule[TrainingExample]):
    """Which examples a step learns from."""

    def __init__(self, config: AstuneConfig) -> None:
        directory = resolve_base_dir(config.model.path, weights=False)
        chat_format = load_chat_format(config.model, directory)
        super().__init__(read_examples(config, chat_format), config.trainer, config.seed, noun="examples")
        self._config, self._method = config, example_method_of(config)
        file = config.trainer.held_out_examples
        held_out = [] if file is None else read_examples(of_file(config, file), chat_format, HELD_OUT)
        self.held_out = self._method.samples(held_out, config)

    def samples(self, step: int) -> list[Sample]:
        """The samples of step `step`, counted from 0."""
        return self._method.samples(self.at(step), self._config)


def of_file(config: AstuneConfig, file: str) -> AstuneConfig:
    """The configuration with other examples, all of them."""
    trainer = config.trainer.model_copy(update={"examples": file, "examples_filter": None})
    return config.model_copy(update={"trainer": trainer})


def is_due(step: int, every: int) -> bool:
    """True if something that happens every so many steps happens after step `step`; 0 is never.

    >>> [step for step in range(1, 10) if is_due(step, 3)], is_due(3, 0)
    ([3, 6, 9], False)
    """
    return every > 0 and step % every == 0


def learning_rate(trainer: TrainerConfig, update: int, total_updates: int) -> float:
    """Warm up linearly, then stay constant or go down to 0 at the end of the run. `update` counts from 0, skipped ones
    included.

    >>> trainer = TrainerConfig(learning_rate=1.0, warmup_steps=2, lr_schedule="linear")
    >>> [learning_rate(trainer, update, 6) for update in range(6)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    """
    if update < trainer.warmup_steps:
        return trainer.learning_rate * (update + 1) / trainer.warmup_steps
    after = max(total_updates - trainer.warmup_steps, 1)
    progress = min((update - trainer.warmup_steps) / after, 1.0)
    shape = {"constant": 1.0, "linear": 1.0 - progress, "cosine": 0.5 * (1.0 + math.cos(math.pi * progress))}
    return trainer.learning_rate * shape[trainer.lr_schedule]
