"""The best checkpoint of a run, by a held-out figure (`astune.trainer.keep_best`)."""

from __future__ import annotations

import math
from typing import NamedTuple

from astune.monitor.receipt import Metrics


class Best(NamedTuple):
    """The step after which a held-out figure was best, and its value there."""

    step: int
    value: float


def best_of(metrics: Metrics, figure: str) -> Best | None:
    """The best value of a figure after a step, the earliest where several are equal; None where none was logged. Of
    step 0, the model before training, there is no checkpoint. A figure called `loss` is best where it is least.

    >>> best_of([{"step": 0, "f": 0.9}, {"step": 5, "f": 0.5}, {"step": 10, "f": 0.7}, {"step": 15, "f": 0.7}], "f")
    Best(step=10, value=0.7)
    """
    best = None
    for row in metrics:
        best = better(figure, best, row["step"], row.get(figure))
    return best


def better(figure: str, best: Best | None, step: int, value: float | None) -> Best | None:
    """`best`, or the new value of the figure if that is better."""
    if value is None or not math.isfinite(value) or step == 0:
        return best
    sign = -1 if figure.endswith("/loss") else 1
    return Best(step, value) if best is None or sign * value > sign * best.value else best
