"""Which schedule, and how many GPUs for what? A simulation of Trinity's explorer and trainer in seconds, no GPU needed.

    python benchmarks/cluster_model.py --gpus 64 --explorer-gpus 48       # schedules beside each other
    python benchmarks/cluster_model.py --gpus 64 --sweep                  # the best split for each schedule
    python benchmarks/cluster_model.py --run runs/p/n                     # lengths of the episodes of a recorded run
    python benchmarks/cluster_model.py --run runs/p/n --against runs/p/m  # what the times of one predict for another

An episode is a row of model calls with tool time between them. All calls of an engine share one decode rate
(cluster/engine.py), runners play a task's attempts at a time (cluster/rollout.py), and weights travel as Trinity's
synchronizer lets them (cluster/schedule.py). All times are inputs. The defaults are arithmetic for an 8B model on
80 GB GPUs and were measured nowhere (docs/scaling.md says where each comes from): put in your own.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from cluster.engine import Speed
from cluster.recorded import (
    max_concurrent,
    read_run,
    rollout_seconds,
    train_seconds_per_token,
    with_fitted_calls,
)
from cluster.rollout import Explorer
from cluster.schedule import Outcome, Schedule, Trainer, limit, longest, simulate
from cluster.workload import Batch, LogNormal, Shape, drawn, resampled

from astune.errors import AstuneError

COLUMNS = (
    "schedule",
    "s/step",
    "of limit",
    "explorer busy",
    "work",
    "trainer",
    "episodes/h",
    "tokens/s",
    "age mean",
    "max",
)


def schedules(options: argparse.Namespace) -> dict[str, Schedule]:
    return {
        "synchronous": Schedule("fixed"),
        "one step off": Schedule("fixed", offset=1),
        f"dynamic, every {options.interval}": Schedule(
            "explorer_driven", interval=options.interval, buffer=max(options.buffer, options.interval)
        ),
        f"asynchronous, {options.in_flight} in flight": Schedule(
            "fully_async", in_flight=options.in_flight, buffer=options.buffer
        ),
    }


def margin(options: argparse.Namespace) -> int:
    """Steps before and after those measured, for filling and draining."""
    longest: int = max(2, options.interval, options.in_flight)
    return longest


def workload(options: argparse.Namespace) -> list[Batch]:
    count = options.steps + 2 * margin(options)
    if options.run:
        recorded = [task for step in read_run(options.run) for task in step.batch]
        return resampled(recorded, count, options.tasks, options.repeat, options.tool_seconds, options.seed)
    shape = Shape(
        turns=LogNormal(options.turns, options.turns_sigma),
        output_tokens=LogNormal(options.output_tokens, options.output_sigma),
        prompt_tokens=options.prompt_tokens,
        tool_tokens=options.tool_tokens,
        tool_seconds=options.tool_seconds,
        judge_seconds=options.judge_seconds,
        max_turns=options.max_turns,
        max_tokens=options.max_tokens,
    )
    return drawn(shape, count, options.tasks, options.repeat, options.seed)


def cluster(options: argparse.Namespace, explorer_gpus: int) -> tuple[Explorer, Trainer]:
    per_token = options.train_ms / 1000
    explorer = Explorer(
        engines=explorer_gpus // options.gpus_per_engine,
        runners_per_engine=options.runners,
        attempts_per_runner=options.repeat,
        speed=speed(options),
    )
    return explorer, Trainer(options.gpus - explorer_gpus, per_token, options.train_fixed)


def speed(options: argparse.Namespace) -> Speed:
    step, running = options.step_ms / 1000, options.running_ms / 1000
    if options.engine_points:
        step, running = fitted(options.engine_points)
    return Speed(step, running, options.prompt_ms / 1000, options.call_ms / 1000)


def fitted(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """`running : tokens per second` pairs as an engine logs them: a decode step takes running / tokens per second.

    >>> [round(seconds, 6) for seconds in fitted([(1, 100.0), (11, 1000.0)])]
    [0.0099, 0.0001]
    """
    xs, ys = [float(running) for running, _ in points], [running / rate for running, rate in points]
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - mean_x) ** 2 for x in xs)
    if not spread:
        raise AstuneError("--engine-points: give two different numbers of running calls, such as 8:620 64:2800")
    slope = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread
    step = mean_y - slope * mean_x
    if slope < 0 or step <= 0:
        raise AstuneError(
            f"--engine-points: a decode step would take {step:.4f} + {slope:.6f} x running seconds; "
            "the points must show tokens per second that rise, and rise slower than the calls running"
        )
    return step, slope


def point(text: str) -> tuple[int, float]:
    running, rate = text.split(":")
    return int(running), float(rate)


def show(rows: Sequence[Sequence[str]], head: Sequence[str]) -> None:
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    for row in (head, *rows):
        cells = [
            text.ljust(width) if not column else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())


def figures(name: str, outcome: Outcome, least: float) -> list[str]:
    return [
        name,
        f"{outcome.step_seconds:.1f}",
        f"{outcome.step_seconds / least:.2f}",
        f"{outcome.explorer_busy:.0%}",
        f"{outcome.explorer_work:.0%}",
        f"{outcome.trainer:.0%}",
        f"{outcome.episodes_per_hour:,.0f}",
        f"{outcome.tokens_per_second:,.0f}",
        f"{outcome.age_mean:.2f}",
        f"{outcome.age_max}",
    ]


def compare(options: argparse.Namespace) -> None:
    """The schedules with one split of the GPUs."""
    explorer, trainer = cluster(options, options.explorer_gpus)
    batches = workload(options)
    least = limit(explorer, trainer, batches)
    size = f"{options.tasks} x {options.repeat} episodes a step"
    print(f"{options.explorer_gpus} GPUs explore, {trainer.gpus} train; {size}")
    print(f"limit {least:.1f} s/step; longest episode of a step alone {longest(explorer, batches):.1f} s")
    rows = []
    for name, schedule in schedules(options).items():
        rows.append(figures(name, simulate(explorer, trainer, schedule, options.sync, batches, margin(options)), least))
    if options.over_rollout:
        waits_for_fewer = replace(explorer, over_rollout=options.over_rollout, grace=options.grace)
        schedule = Schedule("explorer_driven", buffer=options.buffer)
        outcome = simulate(waits_for_fewer, trainer, schedule, options.sync, batches, margin(options))
        rows.append(figures(f"dynamic, {1 - options.over_rollout:.0%} of the tasks", outcome, least))
    show(rows, COLUMNS)


def splits(options: argparse.Namespace) -> list[int]:
    """About eight ways to split the GPUs."""
    size = max(options.gpus_per_engine, math.ceil(options.gpus / 8 / options.gpus_per_engine) * options.gpus_per_engine)
    return list(range(size, options.gpus, size))


def sweep(options: argparse.Namespace) -> None:
    """Seconds per step of every schedule by the number of GPUs that explore; the best is marked."""
    batches = workload(options)
    table: dict[int, list[float]] = {}
    for gpus in splits(options):
        explorer, trainer = cluster(options, gpus)
        table[gpus] = [
            *(
                simulate(explorer, trainer, schedule, options.sync, batches, margin(options)).step_seconds
                for schedule in schedules(options).values()
            ),
            limit(explorer, trainer, batches),
        ]
    best = [min(column) for column in zip(*table.values(), strict=True)]
    rows = [
        [
            f"{gpus}",
            *(f"{seconds:.1f}{'*' if seconds == least else ' '}" for seconds, least in zip(row, best, strict=True)),
        ]
        for gpus, row in table.items()
    ]
    print(f"s/step by GPUs that explore, of {options.gpus}; {options.tasks} x {options.repeat} episodes a step; * best")
    show(rows, ("explore", *schedules(options), "limit"))


def predict(options: argparse.Namespace) -> None:
    """Times out of one recorded run of one engine, played over the episodes of others; medians over steps."""
    steps = read_run(options.run)
    base = with_fitted_calls(Explorer(1, max_concurrent(options.run), 1, speed(options)), steps)
    per_token = train_seconds_per_token(steps)
    print(f"from {options.run}: {1000 * base.speed.per_call:.2f} ms a call, {1000 * per_token:.4f} ms a trained token")
    rows = []
    for folder in (options.run, *options.against):
        explorer = replace(base, runners_per_engine=max_concurrent(folder))
        played = read_run(folder)
        rollout = [rollout_seconds(explorer, step.batch) for step in played]
        train = [step.tokens * per_token for step in played]
        pairs = [
            (rollout, [step.rollout_seconds for step in played]),
            (train, [step.train_seconds for step in played]),
            (list(map(sum, zip(rollout, train, strict=True))), [step.seconds for step in played]),
        ]
        ratio = median(predicted / measured for predicted, measured in zip(*pairs[-1], strict=True))
        shown = [f"{median(values):.2f}" for pair in pairs for values in pair]
        rows.append([folder.name, f"{explorer.most_running}", f"{len(played)}", *shown, f"{ratio:.2f}"])
    show(rows, ("run", "in flight", "steps", *("rollout", "seen", "train", "seen", "step s", "seen"), "ratio"))


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        description="Simulates schedules of exploring and training.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = result.add_argument
    add("--gpus", type=int, default=64)
    add("--explorer-gpus", type=int, default=40, help="the others train")
    add("--gpus-per-engine", type=int, default=1, help="tensor_parallel_size")
    add("--runners", type=int, default=8, help="per engine; each plays all attempts at a task")
    add("--tasks", type=int, default=128, help="per step")
    add("--repeat", type=int, default=8, help="attempts at a task")
    add("--sweep", action="store_true", help="the best split of the GPUs")
    add("--steps", type=int, default=16, help="steps that are measured")
    add("--seed", type=int, default=0)
    timing = result.add_argument_group("times").add_argument
    timing("--step-ms", type=float, default=10.0, help="a decode step, whatever runs")
    timing("--running-ms", type=float, default=0.2, help="more of it per running call")
    timing("--engine-points", type=point, nargs="+", metavar="N:T/S", help="instead: running calls:tokens per second")
    timing("--prompt-ms", type=float, default=0.04, help="of an engine per new prompt token")
    timing("--call-ms", type=float, default=0.0, help="of an engine per call")
    timing("--train-ms", type=float, default=0.2, help="of one GPU per token of a training row")
    timing("--train-fixed", type=float, default=5.0, help="seconds of a training step, whatever its size")
    timing("--sync", type=float, default=5.0, help="seconds until the engines have new weights")
    episodes = result.add_argument_group("episodes").add_argument
    episodes("--run", type=Path, help="folder of a run: its calls per episode and tokens per call")
    episodes("--against", type=Path, nargs="+", default=[], help="folders of runs of the same engine to predict")
    episodes("--turns", type=float, default=4.0, help="median of the calls per episode")
    episodes("--turns-sigma", type=float, default=0.7, help="their spread; 0 is none")
    episodes("--max-turns", type=int, default=30)
    episodes("--output-tokens", type=float, default=250.0, help="median per call")
    episodes("--output-sigma", type=float, default=0.8)
    episodes("--max-tokens", type=int, default=4096, help="per call")
    episodes("--prompt-tokens", type=int, default=600, help="of the first call")
    episodes("--tool-tokens", type=int, default=150, help="that a tool's result adds")
    episodes("--tool-median", type=float, default=0.5, help="seconds that a tool takes")
    episodes("--tool-sigma", type=float, default=1.0)
    episodes("--judge-seconds", type=float, default=0.2)
    options = result.add_argument_group("schedules").add_argument
    options("--interval", type=int, default=4, help="batches between two synchronisations of the dynamic schedule")
    options("--in-flight", type=int, default=2, help="batches explored at a time by the asynchronous one")
    options("--buffer", type=int, default=1, help="batches that may wait for the trainer")
    options("--over-rollout", type=float, default=0.0, help="share of the tasks that a batch does not wait for")
    options("--grace", type=float, default=30.0, help="seconds that it waits for them all the same")
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    options.tool_seconds = LogNormal(options.tool_median, options.tool_sigma)
    try:
        checked(options)
        (predict if options.against else sweep if options.sweep else compare)(options)
    except AstuneError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def checked(options: argparse.Namespace) -> None:
    if options.against and not options.run:
        raise AstuneError("--against: give the run that the times are taken from as --run FOLDER")
    if not 0 < options.explorer_gpus < options.gpus and not options.sweep:
        raise AstuneError(
            f"--explorer-gpus {options.explorer_gpus}: expected 1 to {options.gpus - 1} of --gpus "
            f"{options.gpus}, as at least one has to train"
        )
    if options.explorer_gpus % options.gpus_per_engine:
        raise AstuneError(
            f"--explorer-gpus {options.explorer_gpus}: not a multiple of --gpus-per-engine {options.gpus_per_engine}"
        )
    for name in ("gpus_per_engine", "runners", "tasks", "repeat", "steps", "interval", "in_flight", "buffer"):
        if getattr(options, name) < 1:
            raise AstuneError(f"--{name.replace('_', '-')} {getattr(options, name)}: expected at least 1")
    if options.steps % options.interval:
        raise AstuneError(
            f"--steps {options.steps}: expected a multiple of --interval {options.interval}, so that "
            "every step of the dynamic schedule counts alike"
        )


if __name__ == "__main__":
    sys.exit(main())
