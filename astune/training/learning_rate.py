"""The learning rate of each update."""

from __future__ import annotations

import math

from astune.config.schema import TrainerConfig


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
