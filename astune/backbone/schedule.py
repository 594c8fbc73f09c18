"""Which tasks a step trains on."""

from __future__ import annotations

import random
from collections.abc import Sequence

from astune.config.schema import TrainerConfig
from astune.errors import ConfigError
from astune.types import Task


class TaskSchedule:
    """Seeded shuffles of the training tasks, one per epoch, cut into steps. The tasks of a step depend on its number
    alone, so a resumed run continues the same order. What is left over at the end of an epoch waits for the next
    shuffle, so no step has the same task twice."""

    def __init__(self, tasks: Sequence[Task], trainer: TrainerConfig, seed: int) -> None:
        if len(tasks) < trainer.tasks_per_step:
            raise ConfigError(
                f"astune.trainer.tasks_per_step is {trainer.tasks_per_step}, but there are only {len(tasks)} "
                "training tasks"
            )
        self._tasks, self._seed = tasks, seed
        self._per_step = trainer.tasks_per_step
        self.steps_per_epoch = len(tasks) // trainer.tasks_per_step
        epochs = trainer.total_epochs
        limits = [trainer.total_steps, None if epochs is None else epochs * self.steps_per_epoch]
        self.total_steps = min(limit for limit in limits if limit is not None)

    def tasks(self, step: int) -> list[Task]:
        """Tasks of step `step`, counted from 0."""
        epoch, place = divmod(step, self.steps_per_epoch)
        order = list(range(len(self._tasks)))
        random.Random(f"{self._seed}/{epoch}").shuffle(order)
        chosen = order[place * self._per_step : (place + 1) * self._per_step]
        return [self._tasks[index] for index in chosen]
