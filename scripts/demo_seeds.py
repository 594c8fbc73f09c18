"""The demo with several seeds on any backbone: a table for its page in docs/.

    python scripts/demo_seeds.py --backbone verl --seeds 42 1 2 --steps 40     # what is missing, then the table

Runs stand in `runs/demo_seeds`, one after the other; one that was stopped goes on, one that is complete is not run
again.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from astune.monitor.metrics import read_metrics
from astune.monitor.receipt import Metrics
from astune.monitor.run_dir import RunDir
from astune.monitor.summary import series

RUNS = Path("runs") / "demo_seeds"
SETTINGS = (
    "astune.evaluation.before=false",
    "astune.evaluation.every=0",
    "astune.evaluation.decoding=[greedy]",
    "astune.trainer.save_every=5",
    "astune.monitor.progress=plain",
)
HELD_OUT = "eval/greedy/success"
BIN = 5
"""Steps that a column of the table is the mean of."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="local")
    parser.add_argument("--seeds", nargs="+", type=int, default=[42, 1, 2])
    parser.add_argument("--steps", type=int, default=40)
    given = parser.parse_args()
    runs = {seed: run(given.backbone, seed, given.steps) for seed in given.seeds}
    print(table(runs, given.steps))


def run(backbone: str, seed: int, steps: int) -> Metrics:
    """Run the demo to its end, and give its figures."""
    name = f"{backbone}_{seed}"
    run_dir = RunDir(RUNS / name)
    found = read_metrics(run_dir.metrics_path) if run_dir.metrics_path.is_file() else []
    if any(HELD_OUT in row for row in found):
        return found
    place = (f"astune.runs_dir={RUNS.parent}", f"astune.project_name={RUNS.name}", f"astune.experiment_name={name}")
    length = (f"astune.seed={seed}", f"astune.trainer.total_steps={steps}")
    command = [sys.executable, "-m", "astune", "demo", "--backbone", backbone, *SETTINGS, *place, *length]
    resume = ["--resume"] if run_dir.path.exists() else []
    RUNS.mkdir(parents=True, exist_ok=True)
    with (RUNS / f"{name}.log").open("a") as log:
        subprocess.run([*command, *resume], stdout=log, stderr=subprocess.STDOUT, check=True)
    return read_metrics(run_dir.metrics_path)


def table(runs: Mapping[int, Metrics], steps: int) -> str:
    """Markdown: the mean reward by steps, what was solved of the held-out tasks afterwards, and the minutes of the
    run's steps, for each seed."""
    bins = [(first, min(first + BIN - 1, steps)) for first in range(1, steps + 1, BIN)]
    head = ["seed", *(f"{first}-{last}" for first, last in bins), "held out, greedy", "minutes"]
    lines = [f"| {' | '.join(head)} |", "| --- " * len(head) + "|"]
    for seed, metrics in runs.items():
        rewards = series(metrics, "reward/mean")
        means = [statistics.fmean(value for step, value in rewards if first <= step <= last) for first, last in bins]
        (after,) = [row for row in metrics if HELD_OUT in row]
        solved = f"{after[HELD_OUT]:.0%} ({after[f'{HELD_OUT}_low']:.0%} to {after[f'{HELD_OUT}_high']:.0%})"
        minutes = sum(value for _, value in series(metrics, "time/step")) / 60
        lines.append(f"| {seed} | {' | '.join(f'{mean:.2f}' for mean in means)} | {solved} | {minutes:.0f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
