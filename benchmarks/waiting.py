"""How long may torch's threads look for work before they sleep? Steps of the demo with several `GOMP_SPINCOUNT`, on a
free machine and beside other programs that never rest.

    .venv/bin/python benchmarks/waiting.py --looks 0 3000 10000 300000 --busy 0 1 2       # seven minutes

Every run is `launcher.py --conf tutorial/math_agent/demo.yaml` in a process of its own, as a user starts it; runs with
different looks follow one another, so leave the machine alone. Figures are medians over the steps of a run but the
first, and over the rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench_table import table_of
from rich.console import Console

from astune.monitor.metrics import read_metrics

ROOT = Path(__file__).parents[1]


@contextlib.contextmanager
def busy(programs: int) -> Iterator[None]:
    """So many programs that compute all the time."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(programs)]
    try:
        yield
    finally:
        for program in started:
            program.kill()
            program.wait()


def run(looks: int, steps: int, more: list[str]) -> tuple[float, float]:
    """Seconds of a step and of its update."""
    with tempfile.TemporaryDirectory() as folder:
        overrides = [
            f"astune.runs_dir={folder}",
            f"astune.trainer.total_steps={steps + 1}",
            "astune.evaluation={before: false, every: 0, after: false}",
            "astune.monitor={progress: 'off', trackers: []}",
            *more,
        ]
        command = [sys.executable, "launcher.py", "--conf", "tutorial/math_agent/demo.yaml", *overrides]
        told = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": str(looks)}
        ended = subprocess.run(command, cwd=ROOT, env=os.environ | told, capture_output=True, text=True)
        found = list(Path(folder).rglob("metrics.jsonl"))
        if len(found) != 1:
            raise RuntimeError(ended.stderr[-2000:])
        rows = [row for row in read_metrics(found[0]) if "time/step" in row][1:]
    return tuple(statistics.median(row[name] for row in rows) for name in ("time/step", "time/train"))  # type: ignore[return-value]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--looks", type=int, nargs="+", default=[0, 3000, 10_000, 300_000])
    parser.add_argument("--busy", type=int, nargs="+", default=[0, 1, 2], help="other programs")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("overrides", nargs="*", help="such as astune.rollout.workers=2")
    given = parser.parse_args()
    rows = []
    taken: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for programs in given.busy:
        with busy(programs):
            for _ in range(given.rounds):
                for looks in given.looks:
                    taken.setdefault((looks, programs), []).append(run(looks, given.steps, given.overrides))
    for looks in given.looks:
        cells = []
        for programs in given.busy:
            step, update = (statistics.median(each) for each in zip(*taken[looks, programs], strict=True))
            cells.append(f"{step:.2f}, {update:.2f}")
        rows.append((str(looks), *cells))
    columns = ("looks", *(f"{programs} programs: step s, update s" for programs in given.busy))
    Console(width=140).print(table_of("Steps of the demo", columns, rows))


if __name__ == "__main__":
    main()
