"""How long does the demo take to 90 % where its tool is slow, with rollouts that wait for training and with rollouts
that do not?

The agent is the demo's, but its calculator answers after 0 to 2 seconds, drawn anew for every call
(`slow_tool_agent.py`). For each seed two runs go side by side, `fixed` and `async`, each in a process of its own, so
that whatever else the machine does slows both alike. They save every few steps; afterwards these checkpoints are
evaluated greedily on held-out tasks, with a tool that answers at once. What counts is the time on the clock from the
first episode to the first checkpoint that solves 90 %, found by halving.

    .venv/bin/python benchmarks/async_rollouts.py --seeds 42 1 2
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench_table import table_of
from rich.console import Console

from astune.backbone.local.engine import load_policy
from astune.config.load import load_config
from astune.monitor.metrics import read_metrics
from astune.monitor.receipt import sum_of_receipts
from astune.rollout.group import run_groups
from astune.training.rollout_setup import rollout_setup, sampling_for
from astune.training.tasks import read_tasks

ROOT = Path(__file__).parents[1]
DEMO = ROOT / "tutorial" / "math_agent" / "demo.yaml"
AGENT = f"astune.rollout.agentscope_learn_protocol={Path(__file__).with_name('slow_tool_agent.py')}:SlowMathAgent"


@dataclass(frozen=True)
class Side:
    """One run. `seconds` from the first episode to each checkpoint, by step."""

    name: str
    folder: Path

    @property
    def seconds(self) -> dict[int, float]:
        began = (self.folder / "config.yaml").stat().st_mtime
        saved = {int(path.name.removeprefix("step_")): path for path in (self.folder / "checkpoints").glob("step_*")}
        return {step: (saved[step] / "COMPLETE").stat().st_mtime - began for step in sorted(saved)}

    def success(self, step: int, tasks: int) -> float:
        """Of the checkpoint on so many held-out tasks, greedily."""
        path = self.folder / "checkpoints" / f"step_{step:06d}"
        config = load_config(DEMO, [AGENT, f"astune.model.path={path}"]).config.astune
        _, sampler, chat_format = load_policy(config)
        groups = asyncio.run(
            run_groups(
                list(read_tasks(config).held_out)[:tasks],
                1,
                rollout_setup(config, sampler, chat_format),
                seed=config.seed,
                sampling=sampling_for(config, "greedy"),
                max_concurrent=config.rollout.max_concurrent,
                label="eval",
            )
        )
        verdicts = [episode.verdict for group in groups for episode in group.episodes]
        return sum(verdict is not None and bool(verdict.passed) for verdict in verdicts) / len(verdicts)

    def first_at(self, wanted: float, tasks: int) -> int | None:
        """The first checkpoint that reaches it, if success grows from one to the next; None if the last does not."""
        steps = list(self.seconds)
        if self.success(steps[-1], tasks) < wanted:
            return None
        low, high = 0, len(steps) - 1
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self.success(steps[middle], tasks) >= wanted else (middle + 1, high)
        return steps[high]


def run_both(folder: Path, seed: int, given: argparse.Namespace) -> list[Side]:
    common = [
        AGENT,
        f"astune.runs_dir={folder}",
        f"astune.seed={seed}",
        f"astune.trainer.total_steps={given.steps}",
        f"astune.trainer.tasks_per_step={given.tasks_per_step}",
        f"astune.trainer.save_every={given.every}",
        "astune.trainer.keep_checkpoints=10000",
        "astune.evaluation={before: false, every: 0, after: false}",
        "astune.monitor={progress: plain, tensorboard: false}",
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


def row_of(seed: int, side: Side, wanted: float, tasks: int) -> tuple[float | None, Sequence[str]]:
    seconds, step = side.seconds, side.first_at(wanted, tasks)
    age = sum_of_receipts(read_metrics(side.folder / "metrics.jsonl"))["age"]
    last = max(seconds)
    took = None if step is None else seconds[step]
    return took, [
        str(seed),
        side.name,
        "not reached" if step is None else str(step),
        "" if took is None else f"{took:.0f}",
        f"{seconds[last] / last:.2f}",
        f"{100 * side.success(last, tasks):.0f} %",
        "" if age is None else f"{age[0]:.2f}, {age[1]:.0f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[42])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--every", type=int, default=5, help="steps from one checkpoint to the next")
    parser.add_argument("--tasks-per-step", type=int, default=16)
    parser.add_argument("--max-staleness", type=int, default=2)
    parser.add_argument("--max-concurrent", type=int, default=384, help="of async; fixed never has more than a step")
    parser.add_argument("--wanted", type=float, default=0.9)
    parser.add_argument("--held-out", type=int, default=200, help="tasks of an evaluation")
    parser.add_argument("--folder", type=Path, help="where the runs are kept; else they are deleted")
    given = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as place:
        folder = given.folder or Path(place)
        folder.mkdir(parents=True, exist_ok=True)
        for seed in given.seeds:
            (fixed, first), (ahead, second) = (
                row_of(seed, side, given.wanted, given.held_out) for side in run_both(folder, seed, given)
            )
            ratio = "" if fixed is None or ahead is None else f"{ahead / fixed:.2f}"
            rows += [[*first, ""], [*second, ratio]]
    columns = ["seed", "style", "steps", "seconds", "s a step", "at the end", "age: mean, most", "of fixed"]
    title = f"To {100 * given.wanted:.0f} % of {given.held_out} held-out tasks, with a tool that takes 0 to 2 s"
    Console().print(table_of(title, columns, rows, left=2))
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"load of the machine at the end, over 1, 5 and 15 minutes: {load}; cores: {os.cpu_count()}")


if __name__ == "__main__":
    main()
