"""Learning curves of the demo under each algorithm, several seeds: a figure and a table for docs/algorithms.md.

    python scripts/learning_curves.py                       # all that is missing, then figure and table
    python scripts/learning_curves.py --only grpo rloo      # only these
    python scripts/learning_curves.py --draw                # figure and table of the runs that are there

Runs stand in `runs/learning_curves`; one that is complete is not run again, one that was stopped goes on. Each takes
one core for one or two minutes; as many run side by side as there are cores.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from astune.monitor.metrics import read_metrics
from astune.monitor.run_dir import RunDir
from astune.monitor.summary import series
from astune.viewer.charts import Frame, svg

ROOT = Path(__file__).parents[1]
DEMO = ROOT / "tutorial" / "math_agent" / "demo.yaml"
RUNS = Path("runs") / "learning_curves"
FIGURE = ROOT / "docs" / "images" / "algorithms.svg"
SEEDS = (1, 2, 3)
FIGURE_NAME = "eval/sampled/success"
COMMON = (
    "astune.task_reader.max_validation_tasks=150",
    "astune.evaluation.every=5",
    "astune.evaluation.decoding=[sampled]",
    "astune.trainer.tasks_per_step=8",
    "astune.trainer.save_every=10",
    "astune.trainer.learning_rate=5e-4",
    "astune.trainer.warmup_steps=0",
    "astune.trainer.lr_schedule=constant",
)
"""The demo learns in a few steps at its own learning rate, whatever the algorithm; here slowly enough to compare."""

PRESETS = ("rloo", "gspo", "minirl")
VARIANTS: Mapping[str, Sequence[str]] = {
    "defaults": (),
    **{name: (f"astune.algorithm.preset={name}",) for name in PRESETS},
    "ppo": (
        "astune.algorithm.preset=ppo",
        "astune.algorithm.critic.learning_rate=1e-3",
        "astune.algorithm.critic.warmup_updates=2",
    ),
    "lora": ("astune.model.lora.rank=16", "astune.trainer.learning_rate=2e-3"),
    "rft": ("astune.algorithm.method=rft",),
    "sft_then_grpo": (
        "astune.stages=[{algorithm: {method: sft}, trainer: {examples: {defaults}/episodes/train.jsonl, "
        "examples_filter: reward>=1 and step<=10, total_steps: 5, tasks_per_step: 64}}, {trainer: {total_steps: 15}}]",
    ),
    "grpo_then_dpo": (
        "astune.stages=[{trainer: {total_steps: 10}}, {algorithm: {method: dpo}, trainer: {examples_of_run: true, "
        "total_steps: 10, tasks_per_step: 32, learning_rate: 2e-4}}]",
    ),
    "distill": ("astune.algorithm.method=distill", "astune.algorithm.teacher={defaults}/checkpoints/step_000020"),
}
"""Options of each variant on top of the demo's file and `COMMON`. `{defaults}` is the folder of the run `defaults` of
the same seed, which comes before."""

Curve = Sequence[tuple[int, float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(VARIANTS), default=list(VARIANTS), metavar="VARIANT")
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--draw", action="store_true", help="run nothing")
    given = parser.parse_args()
    jobs = [(variant, seed) for variant in VARIANTS for seed in given.seeds if variant in given.only]
    if not given.draw:
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            failed = [name for name in pool.map(lambda job: run(*job, given.steps), jobs) if name]
        if failed:
            print("failed:", ", ".join(failed), file=sys.stderr)
    curves = {variant: found for variant in VARIANTS if (found := curves_of(variant))}
    FIGURE.write_text(picture(curves), encoding="utf-8")
    print(table(curves))


def folder(variant: str, seed: int) -> Path:
    return RUNS / f"{variant}_{seed}"


def run(variant: str, seed: int, steps: int) -> str:
    """Run one variant with one seed to its end. Returns its name if it failed, else an empty text."""
    name = f"{variant}_{seed}"
    options = [
        *COMMON,
        f"astune.seed={seed}",
        f"astune.trainer.total_steps={steps}",
        f"astune.runs_dir={RUNS.parent}",
        f"astune.project_name={RUNS.name}",
        f"astune.experiment_name={name}",
        "astune.monitor.progress=off",
        *(option.replace("{defaults}", str(folder("defaults", seed).resolve())) for option in VARIANTS[variant]),
    ]
    RUNS.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "astune", "run", "--conf", str(DEMO), *options]
    path = folder(variant, seed)
    resume = ["--resume"] if path.exists() and RunDir(path).latest_checkpoint() else []
    if not resume:
        shutil.rmtree(path, ignore_errors=True)  # stopped before its first checkpoint
    with (RUNS / f"{name}.log").open("w") as log:
        done = subprocess.run(
            [*command, *resume], stdout=log, stderr=subprocess.STDOUT, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
    print(f"{name}: {'done' if done.returncode == 0 else f'exit code {done.returncode}, see {log.name}'}", flush=True)
    return name if done.returncode else ""


def curves_of(variant: str) -> dict[int, Curve]:
    """The held-out success by step, of each seed that has a run."""
    found = {}
    for path in sorted(RUNS.glob(f"{variant}_[0-9]*")):
        metrics = RunDir(path).metrics_path
        if metrics.is_file() and (points := series(read_metrics(metrics), FIGURE_NAME)):
            found[int(path.name.rpartition("_")[2])] = points
    return found


def table(curves: Mapping[str, Mapping[int, Curve]]) -> str:
    """Markdown: held-out success at the start and at the end, each seed and the mean, and the step that passed 60 %."""
    lines = ["| variant | start | end, each seed | end, mean | first step at 60 % |", "| --- | --- | --- | --- | --- |"]
    for variant, seeds in curves.items():
        ends = [points[-1][1] for points in seeds.values()]
        starts = statistics.fmean(points[0][1] for points in seeds.values())
        reached = [next((step for step, value in points if value >= 0.6), None) for points in seeds.values()]
        shown = ", ".join(f"{100 * end:.0f}" for end in ends)
        when = ", ".join("-" if step is None else str(step) for step in reached)
        lines.append(
            f"| `{variant}` | {100 * starts:.0f} % | {shown} | {100 * statistics.fmean(ends):.0f} % | {when} |"
        )
    return "\n".join(lines)


COLUMNS, PANEL_WIDTH, PANEL_HEIGHT = 3, 264, 190


def picture(curves: Mapping[str, Mapping[int, Curve]]) -> str:
    """One panel for each variant on the same axes: the seeds thin, their mean thick."""
    width, height = COLUMNS * PANEL_WIDTH + 16, math.ceil(len(curves) / COLUMNS) * PANEL_HEIGHT + 56
    last = max((points[-1][0] for seeds in curves.values() for points in seeds.values()), default=1)
    title = "Held-out success of the demo, sampled, by training step"
    parts = [f'<rect class="card" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="10"/>']
    parts.append(f'<text class="title" x="24" y="34">{title}</text>')
    for number, (variant, seeds) in enumerate(curves.items()):
        left = 8 + number % COLUMNS * PANEL_WIDTH
        top = 48 + number // COLUMNS * PANEL_HEIGHT
        parts += panel(
            Frame(left + 46, top + 30, left + PANEL_WIDTH - 14, top + 150, (0, last), (0, 1)), variant, seeds
        )
    return svg(width, height, title, parts)


def panel(frame: Frame, variant: str, seeds: Mapping[int, Curve]) -> list[str]:
    parts = [f'<text class="strong" x="{frame.left}" y="{frame.top - 12}">{variant}</text>']
    for tick in (0, 0.5, 1):
        y = frame.y(tick)
        parts.append(f'<line class="grid" x1="{frame.left}" x2="{frame.right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{frame.left - 6}" y="{y + 4:.1f}" font-size="11" text-anchor="end">{tick:.0%}</text>')
    for step in frame.steps:
        x = frame.x(step)
        parts.append(f'<text x="{x:.1f}" y="{frame.bottom + 18}" font-size="11" text-anchor="middle">{step}</text>')
    parts += [f'<path class="raw" d="{frame.path(points)}"/>' for points in seeds.values()]
    steps = sorted(set.intersection(*({step for step, _ in points} for points in seeds.values())))
    mean = [(step, statistics.fmean(dict(points)[step] for points in seeds.values())) for step in steps]
    return [*parts, f'<path class="mean" d="{frame.path(mean)}"/>']


if __name__ == "__main__":
    main()
