"""`astune tasks pools`: what a run with a curriculum knows of its tasks, by step and now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from astune.algorithm.curriculum import POOLS, Memory, TaskRecord
from astune.errors import ConfigError
from astune.monitor import RunDir
from astune.monitor.metrics import read_metrics
from astune.support.visible import tell, tell_json
from astune.viewer.page import check_run

MOST_STEPS = 12
"""Lines of steps, evenly spread."""
WIDTH = 48
MARKS = dict(zip(POOLS, "·█▒░", strict=True))


def show_pools(path: Path, show: int, as_json: bool) -> int:
    """Print the pools by step, and the tasks of each as the newest checkpoint knows them."""
    if show < 0:
        raise ConfigError(f"--show: expected a whole number from 0, found {show}")
    check_run(path)
    run = RunDir(path)
    metrics = read_metrics(run.metrics_path) if run.metrics_path.exists() else []
    steps = [row for row in metrics if all(f"curriculum/{pool}" in row for pool in POOLS)]
    if not steps:
        raise ConfigError(f"{path}: no step of this run was drawn by astune.trainer.curriculum")
    checkpoint = run.latest_checkpoint()
    records = [] if checkpoint is None else sorted(Memory.load(checkpoint).before().items())
    known = {pool: [record for _, record in records if record.pool == pool] for pool in POOLS[1:]}
    if as_json:
        by_step = [{"step": row["step"], **{pool: int(row[f"curriculum/{pool}"]) for pool in POOLS}} for row in steps]
        tasks = [{"pool": record.pool, **record._asdict()} for _, record in records]
        tell_json({"steps": by_step, "tasks": tasks})
        return 0
    tell("\n".join((*_steps(steps), "", *_tasks(known, show, checkpoint))))
    return 0


def _steps(steps: Sequence[Mapping[str, Any]]) -> list[str]:
    legend = "  ".join(f"{MARKS[pool]} {pool}" for pool in POOLS)
    lines = ["  ".join((f"{'step':>6}", *(f"{pool:>8}" for pool in POOLS), legend))]
    last = len(steps) - 1
    chosen = sorted({round(last * place / (MOST_STEPS - 1)) for place in range(MOST_STEPS)})
    for row in (steps[index] for index in chosen):
        counts = [int(row[f"curriculum/{pool}"]) for pool in POOLS]
        ends = [round(WIDTH * sum(counts[: place + 1]) / sum(counts)) for place in range(len(POOLS))]
        bar = "".join(MARKS[pool] * (end - start) for pool, start, end in zip(POOLS, [0, *ends], ends, strict=False))
        lines.append("  ".join((f"{row['step']:>6}", *(f"{count:>8,}" for count in counts), bar)))
    return [line.rstrip() for line in lines]


def _tasks(known: Mapping[str, Sequence[TaskRecord]], show: int, checkpoint: Path | None) -> Iterable[str]:
    """The tasks of each pool, those left alone the longest first."""
    if checkpoint is None:
        yield "there is no checkpoint yet, which says which tasks these are"
    for pool, records in known.items():
        ordered = sorted(records, key=lambda one: one.step)
        if ordered and show:
            yield f"{pool} as of {checkpoint.name if checkpoint else ''}: {len(ordered):,} tasks"
        for one in ordered[:show]:
            yield f"  {one.task_id}: {one.right:g} of {one.attempts:g} attempts right, last in step {one.step + 1}"
