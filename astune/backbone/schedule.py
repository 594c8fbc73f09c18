"""What a step trains on."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Generic, TypeVar

from astune.config.schema import TrainerConfig
from astune.errors import ConfigError
from astune.types import Task

Item = TypeVar("Item")


class Schedule(Generic[Item]):
    """Seeded shuffles of the items, one per epoch, cut into steps of `astune.trainer.tasks_per_step`. What a step gets
    depends on its number alone, so a resumed run continues the same order. What is left over at the end of an epoch
    waits for the next shuffle, so no step has the same item twice. `noun` is what messages call the items."""

    def __init__(self, items: Sequence[Item], trainer: TrainerConfig, seed: int, noun: str) -> None:
        if len(items) < trainer.tasks_per_step:
            raise ConfigError(
                f"astune.trainer.tasks_per_step is {trainer.tasks_per_step}, but there are only {len(items)} {noun}"
            )
        self._items, self._seed = items, seed
        self._per_step = trainer.tasks_per_step
        self.steps_per_epoch = len(items) // trainer.tasks_per_step
        epochs = trainer.total_epochs
        limits = [trainer.total_steps, None if epochs is None else epochs * self.steps_per_epoch]
        self.total_steps = min(limit for limit in limits if limit is not None)

    def at(self, step: int) -> list[Item]:
        """The items of step `step`, counted from 0."""
        epoch, place = divmod(step, self.steps_per_epoch)
        order = list(range(len(self._items)))
        random.Random(f"{self._seed}/{epoch}").shuffle(order)
        chosen = order[place * self._per_step : (place + 1) * self._per_step]
        return [self._items[index] for index in chosen]


class TaskSchedule(Schedule[Task]):
    """Which tasks a step trains on."""

    def __init__(self, tasks: Sequence[Task], trainer: TrainerConfig, seed: int) -> None:
        super().__init__(tasks, trainer, seed, noun="training tasks")

    def tasks(self, step: int) -> list[Task]:
        """Tasks of step `step`, counted from 0."""
        return self.at(step)
