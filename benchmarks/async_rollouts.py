"""How long does the demo take to learn where its tool is slow, with rollouts that wait for training and with rollouts
that do not?

The agent is the demo's, but its calculator answers after 0 to 2 seconds, drawn anew for every call
(`slow_tool_agent.py`). For each seed two runs go side by side, `fixed` and `async`, each in a process of its own, so
that whatever else the machine does slows both alike. What counts are the seconds of the steps until the success of the
training episodes, a mean over ten steps, first is as great as wanted.

    .venv/bin/python benchmarks/async_rollouts.py --seeds 42 1 2
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from bench_table import table_of
from rich.console import Console

from astune.monitor.metrics import read_metrics
from astune.monitor.receipt import sum_of_receipts

ROOT = Path(__file__).parents[1]
DEMO = ROOT / "tutorial" / "math_agent" / "demo.yaml"
MEAN = 10
"""Steps over which success is averaged."""
AGENT = f"astune.rollout.agentscope_learn_protocol={Path(__file__).with_name('slow_tool_agent.py')}:SlowMathAgent"


@dataclass(frozen=True)
class Side:
    """One run."""

    name: str
    folder: Path

    def row(self, seed: int, wanted: float) -> tuple[float | None, Sequence[str]]:
        """The seconds until it was reached, and a line of the table."""
        metrics = read_metrics(self.folder / "metrics.jsonl")
        rows = [row for row in metrics if "success/mean" in row]
        seconds, step = list(accumulate(row["time/step"] for row in rows)), None
        for number in range(MEAN, len(rows) + 1):
            if sum(row["success/mean"] for row in rows[number - MEAN : number]) / MEAN >= wanted:
                step = number
                break
        took = None if step is None else seconds[step - 1]
        mean = [sum(row[f"time/{part}"] for row in rows) / len(rows) for part in ("step", "rollout", "train")]
        age = sum_of_receipts(metrics)["age"]
        shown = ["not reached", ""] if took is None else [str(step), f"{took:.0f}"]
        aged = "" if age is None else f"{age[0]:.2f}, {age[1]:.0f}"
        return took, [str(seed), self.name, *shown, *(f"{each:.2f}" for each in mean), aged]


def run_both(folder: Path, seed: int, given: argparse.Namespace) -> list[Side]:
    common = [
        AGENT,
        f"astune.runs_dir={folder}",
        f"astune.seed={seed}",
        f"astune.trainer.total_steps={given.steps}",
        f"astune.trainer.tasks_per_step={given.tasks_per_step}",
        "astune.evaluation={before: false, every: 0, after: false}",
        "astune.monitor={progress: plain, trackers: []}",
    ]
    ahead = [
        "astune.synchronizer.style=async",
        f"astune.synchronizer.max_staleness={given.max_staleness}",
        f"astune.rollout.max_concurrent={given.max_concurrent}",
    ]
    sides, processes = [], []
    for name, more in (("fixed", []), ("async", ahead)):
        command = [sys.executable, "-m", "astune", "--conf", str(DEMO), *common, *more]
        log = (folder / f"{name}-{seed}.log").open("w")
        experiment = f"astune.experiment_name={name}-{seed}"
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        processes.append(subprocess.Popen([*command, experiment], stdout=log, stderr=log, env=environment))
        sides.append(Side(name, folder / "math_agent" / f"{name}-{seed}"))
    for process in processes:
        process.wait()
    return sides


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[42])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--tasks-per-step", type=int, default=16)
    parser.add_argument("--max-staleness", type=int, default=2)
    parser.add_argument("--max-concurrent", type=int, default=384, help="of async; fixed never has more than a step")
    parser.add_argument("--wanted", type=float, default=0.9)
    parser.add_argument("--folder", type=Path, help="where the runs are kept; else they are deleted")
    given = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as place:
        folder = given.folder or Path(place)
        folder.mkdir(parents=True, exist_ok=True)
        for seed in given.seeds:
            (fixed, first), (ahead, second) = (side.row(seed, given.wanted) for side in run_both(folder, seed, given))
            ratio = "" if fixed is None or ahead is None else f"{ahead / fixed:.2f}"
            rows += [[*first, ""], [*second, ratio]]
    columns = ["seed", "style", "steps", "seconds", "s a step", "waited", "trained", "age: mean, most", "of fixed"]
    title = f"To {100 * given.wanted:.0f} % success in training, with a tool that takes 0 to 2 s"
    Console().print(table_of(title, columns, rows, left=2))
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"load of the machine at the end, over 1, 5 and 15 minutes: {load}; cores: {os.cpu_count()}")


if __name__ == "__main__":
    main()
