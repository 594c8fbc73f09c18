"""The best checkpoint of a run, by a held-out figure (`astune.trainer.keep_best`)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from astune.monitor.receipt import Metrics


class Best(NamedTuple):
    """The step after which a held-out figure was best, and its value there."""

    step: int
    value: float


def figures_so_far(
    common: str | None, stages: Sequence[Mapping[str, Any]] | None, metrics: Metrics
) -> list[str | None]:
    """The figure by which each of `astune.stages` that has begun keeps its best, where `common` is what the run says
    for all; without stages that of the run.

    >>> figures_so_far("eval/greedy/success", [{"trainer": {"keep_best": None}}, {}], [{"step": 3, "stage": 2}])
    [None, 'eval/greedy/success']
    """
    begun = max((int(row.get("stage", 1)) for row in metrics), default=1)
    return [(stage.get("trainer") or {}).get("keep_best", common) for stage in stages or [{}]][:begun]


def best_so_far(metrics: Metrics, figures: Sequence[str | None]) -> Best | None:
    """The step that is best by the last of `figures`, those of a run's stages so far (without stages there is one),
    since that became the figure: of what was better before, the checkpoint is gone, but for the last of a stage.

    >>> rows = [{"step": 1, "f": 0.9, "stage": 1}, {"step": 2, "stage": 1}, {"step": 2, "f": 0.7}]
    >>> best_so_far(rows, ["f", "f"]), best_so_far(rows, [None, "f"]), best_so_far(rows, ["f", None])
    (Best(step=1, value=0.9), Best(step=2, value=0.7), None)
    """
    *_, figure = figures
    if figure is None:
        return None
    others = max((number for number, each in enumerate(figures, start=1) if each != figure), default=0)
    since = max((row["step"] for row in metrics if 0 < row.get("stage", 0) <= others), default=0)
    return best_of([row for row in metrics if row["step"] >= since], figure)


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
