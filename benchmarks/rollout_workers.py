"""How long does a step of the demo take with `astune.rollout.workers`, beside one process?

One process holds the model and a set of workers for each number that is compared; steps are taken in turn with each, on
the same tasks with the same seeds, so that a busy machine slows all alike. A step is what a run does: 16 tasks with 8
attempts each by an AgentScope agent, judged, one update, publishing. Weights go on changing from step to step, in the
order in which steps are taken; `--still` leaves them as they are, so that all sample the same tokens, and says whether
they did.

Beside wall-clock times, which on a machine that others use flatter whoever has more processes, stands what the machine
computed: seconds of CPU of the run's own process and of each worker. A step cannot be shorter than the longest of them,
nor than their sum over the cores.

    .venv/bin/python benchmarks/rollout_workers.py --workers 0 1 2 3 --rounds 7
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from bench_table import table_of
from rich.console import Console

from astune.algorithm import BatchRules, load_estimator, to_samples
from astune.backbone.local.engine import load_engine
from astune.config.load import load_config
from astune.config.schema import AstuneConfig
from astune.rollout.group import run_groups
from astune.rollout.setup import RolloutSetup
from astune.training.engine import Engine
from astune.training.rollout_setup import sampling_for, weighting_for
from astune.training.rollout_workers.pool import EpisodeWorkers, set_up_rollouts
from astune.training.rollout_workers.process import EpisodeProcess
from astune.training.tasks import read_tasks
from astune.types import Group, Task

DEMO = Path(__file__).parents[1] / "tutorial" / "math_agent" / "demo.yaml"
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Side:
    """Steps with one number of workers: seconds of each, and of CPU."""

    workers: int
    setup: RolloutSetup
    rollout: list[float] = field(default_factory=list)
    step: list[float] = field(default_factory=list)
    own_cpu: list[float] = field(default_factory=list)
    worker_cpu: list[float] = field(default_factory=list)
    tokens: list[list[tuple[int, ...]]] = field(default_factory=list)

    @property
    def pids(self) -> list[int]:
        player = self.setup.player
        workers = player.workers if isinstance(player, EpisodeWorkers) else ()
        return [worker.pid for worker in workers if isinstance(worker, EpisodeProcess)]


def cpu_of(pid: int) -> float:
    """Seconds that a process has computed."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


async def take_step(
    config: AstuneConfig, engine: Engine, side: Side, tasks: list[Task], number: int, learn: bool
) -> None:
    before, own = [cpu_of(pid) for pid in side.pids], time.process_time()
    began = time.perf_counter()
    groups = await run_groups(
        tasks,
        config.rollout.num_repeat,
        side.setup,
        seed=config.seed,
        sampling=sampling_for(config, "sampled"),
        max_concurrent=config.rollout.max_concurrent,
        label=f"train/{number}",
    )
    side.rollout.append(time.perf_counter() - began)
    if learn:
        await update(config, engine, groups)
    side.step.append(time.perf_counter() - began)
    side.own_cpu.append(time.process_time() - own)
    used = [cpu_of(pid) - start for pid, start in zip(side.pids, before, strict=True)]
    side.worker_cpu.append(max(used, default=0.0))
    turns = [turn for group in groups for episode in group.episodes for turn in episode.turns]
    side.tokens.append([tuple(turn.output_ids) for turn in turns])


async def update(config: AstuneConfig, engine: Engine, groups: list[Group]) -> None:
    rules = BatchRules.of(config, engine.policy.context_length)
    ruled = rules(groups)
    samples, _ = to_samples(ruled.groups, load_estimator(config.algorithm), weighting_for(config), ruled.left_out)
    await engine.learner.update(samples, config.trainer.learning_rate)


async def measure(workers: list[int], rounds: int, still: bool) -> list[Side]:
    config = load_config(DEMO).config.astune
    engine = load_engine(config)
    tasks = list(read_tasks(config).training)[: 16 * (rounds + 1)]
    async with AsyncExitStack() as stack:
        sides = []
        for count in workers:
            rollout = config.rollout.model_copy(update={"workers": count})
            side = Side(count, set_up_rollouts(config.model_copy(update={"rollout": rollout}), engine))
            await stack.enter_async_context(side.setup.open())
            sides.append(side)
        for number in range(rounds + 1):  # the first is not counted: caches grow, modules are imported
            for side in sides[number % len(sides) :] + sides[: number % len(sides)]:
                await take_step(config, engine, side, tasks[16 * number :][:16], number, not still)
                await engine.learner.publish()
    return sides


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2, 3])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--still", action="store_true", help="leave the weights as they are")
    given = parser.parse_args()
    sides = asyncio.run(measure(given.workers, given.rounds, given.still))
    first = sides[0]
    rows = []
    for side in sides:
        ratios = [
            statistics.median(own / base for own, base in zip(mine[1:], its[1:], strict=True))
            for mine, its in ((side.rollout, first.rollout), (side.step, first.step))
        ]
        medians = [statistics.median(each[1:]) for each in (side.rollout, side.step, side.own_cpu, side.worker_cpu)]
        same = ["same"] if given.still and side.tokens == first.tokens else ["other"] if given.still else []
        rows.append([str(side.workers), *(f"{each:.2f}" for each in (*medians, *ratios)), *same])
    columns = [
        "workers",
        "rollout s",
        "step s",
        "own CPU s",
        "CPU s of a worker",
        "rollout",
        f"step, of {first.workers}",
    ]
    title = "A step of the demo, medians; ratios to the first line are medians of those of neighbours"
    Console().print(table_of(title, [*columns, *(["tokens"] if given.still else [])], rows))


if __name__ == "__main__":
    main()
