"""What people call a checkpoint: `runs/p/n`, `runs/p/n@best`, `runs/p/n@40`, or its folder."""

from __future__ import annotations

import re
from pathlib import Path

from astune.config.source import read_yaml
from astune.errors import ConfigError
from astune.monitor.best import best_so_far, figures_so_far
from astune.monitor.metrics import read_metrics
from astune.monitor.run_dir import RunDir


def find_checkpoint(text: str) -> Path | None:
    """The folder of a run's newest checkpoint, of its best (`RUN@best`), of that of a step (`RUN@40`), or the
    checkpoint's folder itself. None for what is no checkpoint of a run: a model's folder, a hub id.

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
    elif which == "best" and at:
        path = run.checkpoint_path(_best_step(run))
    elif at:
        path = run.checkpoint_path(_step(run, which))
    else:
        path = _newest(run)
    if path not in run.checkpoints():
        there = ", ".join(str(int(each.name[len("step_") :])) for each in run.checkpoints()) or "none"
        raise ConfigError(f"{text}: there is no complete checkpoint {path}; checkpoints of steps: {there}")
    run.check_checkpoint(path)
    return path


def _newest(run: RunDir) -> Path:
    newest = run.latest_checkpoint()
    if newest is None:
        raise ConfigError(f"{run.path}: it has no checkpoint that is complete (astune.trainer.save_every)")
    return newest


def _step(run: RunDir, which: str) -> int:
    if not which.isdecimal():
        raise ConfigError(f"{run.path}@{which}: expected @best or the number of a step, as {run.path}@40")
    return int(which)


def _best_step(run: RunDir) -> int:
    section = read_yaml(run.config_path).values.get("astune") or {}
    metrics = read_metrics(run.metrics_path)
    figures = figures_so_far((section.get("trainer") or {}).get("keep_best"), section.get("stages"), metrics)
    if figures[-1] is None:
        of = f"stage {len(figures)} of the run" if section.get("stages") else "the run"
        raise ConfigError(
            f"{run.path}@best: astune.trainer.keep_best of {of} is not set, so nothing says which is the best; name "
            f"a step, as {run.path}@40"
        )
    best = best_so_far(metrics, figures)
    if best is None:
        raise ConfigError(f"{run.path}@best: the run has no {figures[-1]} after a step yet")
    return best.step
