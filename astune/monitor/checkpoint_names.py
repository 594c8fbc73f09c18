"""A run's best checkpoint by a held-out figure (`astune.trainer.keep_best`), and the names of checkpoints: `runs/p/n`,
`runs/p/n@best`, of one of several models `runs/p/n@best:wolf`, `runs/p/n@40`, or the folder."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from astune.config.evaluation import aim_of
from astune.config.source import read_saved
from astune.errors import ConfigError
from astune.monitor.metrics import read_metrics
from astune.monitor.receipt import Metrics
from astune.monitor.run_dir import RunDir
from astune.support.statistics import exceeds


def find_checkpoint(text: str) -> Path | None:
    """The folder of a run's newest checkpoint, of its best (`RUN@best`), of the best of one of several models
    (`RUN@best:wolf`), of that of a step (`RUN@40`), or the checkpoint's folder itself. None for what is no checkpoint
    of a run: a model's folder, a hub id.

    Raises ConfigError where the run has no such checkpoint, and RunFolderError that names the file where one is
    damaged.
    """
    name, at, which = text.rpartition("@")
    folder = Path(name if at else text).expanduser()
    run = RunDir(folder)
    if not run.checkpoints_dir.is_dir():
        folder = Path(text).expanduser()
        if not folder.is_dir() or folder.parent.name != "checkpoints" or not re.fullmatch(r"step_\d+", folder.name):
            return None
        run = RunDir(folder.parents[1])
        path = folder
    elif at and which.partition(":")[0] == "best":
        path = run.checkpoint_path(_best_step(run, which.partition(":")[2]))
    elif at:
        if not which.isdecimal():
            raise ConfigError(f"{run.path}@{which}: expected @best or the number of a step, as {run.path}@40")
        path = run.checkpoint_path(int(which))
    else:
        newest = run.latest_checkpoint()
        if newest is None:
            raise ConfigError(f"{run.path}: it has no checkpoint that is complete (astune.trainer.save_every)")
        path = newest
    if path not in run.checkpoints():
        there = ", ".join(str(int(each.name[len("step_") :])) for each in run.checkpoints()) or "none"
        raise ConfigError(f"{text}: there is no complete checkpoint {path}; checkpoints of steps: {there}")
    run.check_checkpoint(path)
    return path


def _best_step(run: RunDir, model: str) -> int:
    section = read_saved(run.config_path).get("astune") or {}
    metrics = read_metrics(run.metrics_path)
    if model:
        section = (section.get("models") or {}).get(model) or {}
    figures = figures_so_far((section.get("trainer") or {}).get("keep_best"), section.get("stages"), metrics)
    if figures[-1] is None:
        of = f"stage {len(figures)} of the run" if section.get("stages") else f"model {model!r}" if model else "the run"
        raise ConfigError(
            f"{run.path}@best: astune.trainer.keep_best of {of} is not set, so nothing says which is the best; name "
            f"a step, as {run.path}@40"
        )
    best = best_so_far(metrics, figures)
    if best is None:
        raise ConfigError(f"{run.path}@best: the run has no {figures[-1]} after a step yet")
    return best.step


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
    step 0, the model before training, there is no checkpoint. `figure` is as of `astune.trainer.keep_best`.

    >>> best_of([{"step": 0, "f": 0.9}, {"step": 5, "f": 0.5}, {"step": 10, "f": 0.7}, {"step": 15, "f": 0.7}], "f")
    Best(step=10, value=0.7)
    """
    best = None
    for row in metrics:
        best = better(figure, best, row["step"], row.get(aim_of(figure).figure))
    return best


def better(figure: str, best: Best | None, step: int, value: float | None) -> Best | None:
    """`best`, or the new value of the figure if that is better."""
    if value is None or not math.isfinite(value) or step == 0:
        return best
    sign = -1 if aim_of(figure).lowest else 1
    return Best(step, value) if best is None or exceeds(sign * value, sign * best.value) else best
