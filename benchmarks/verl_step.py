"""Where does a step on verl go, beside `local`, on a CPU?

    .venv-verl/bin/python benchmarks/verl_step.py --rounds 6

Both engines are in one run with equal settings: `local` in this process, verl with one training worker and one server
on Ray. They take steps of the demo in turn, on the same tasks with the same seeds, so that a busy machine slows both:
128 episodes of an AgentScope agent, judged, one update, publishing, saving. While one computes the other waits.

The limits: for the rollout `local`'s, which has the same sampler without Ray between; for the gradient a plain loop
over the same rows, padded, with torch and transformers alone (`training_step.py`); for the hand-over the weights put
into Ray's object store and taken out again; for saving the model's own `save_pretrained`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench_table import table_of
from rich.console import Console

from astune.algorithm import BatchRules, load_estimator, to_samples
from astune.backbone.local.engine import load_engine as load_local
from astune.backbone.verl.backbone import engine_of
from astune.config.load import LoadedConfig, load_config
from astune.rollout.group import run_groups
from astune.support.resources import tiny_model_dir
from astune.training.engine import Engine
from astune.training.rollout_setup import sampling_for, weighting_for
from astune.training.rollout_workers.pool import set_up_rollouts
from astune.training.tasks import read_tasks
from astune.types import Sample, Task

DEMO = Path(__file__).parents[1] / "tutorial" / "math_agent" / "demo.yaml"
PARTS = ("rollout", "gradient", "optimizer", "score", "hand-over", "compare", "save")
STEP = PARTS[:-1]
"""Parts of every step; saving is not."""


@dataclass
class Seconds:
    """Of each part, one for each step."""

    parts: dict[str, list[float]] = field(default_factory=dict)

    @contextmanager
    def of(self, part: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.add(part, time.perf_counter() - began)

    def add(self, part: str, seconds: float) -> None:
        self.parts.setdefault(part, []).append(seconds)

    def median(self, part: str) -> float:
        return statistics.median(self.parts[part][1:]) if part in self.parts else 0.0

    def timed(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def made(*arguments: Any) -> Any:
            with self.of(part):
                return call(*arguments)

        return made


@dataclass
class Side:
    name: str
    loaded: LoadedConfig
    engine: Engine
    seconds: Seconds
    samples: Sequence[Sample] = ()
    trained: list[int] = field(default_factory=list)
    """Tokens with loss in each step."""


def started(name: str) -> Side:
    loaded = load_config(DEMO, backbone=name)
    seconds = Seconds()
    with seconds.of("start"):
        config = loaded.config.astune
        engine = load_local(config) if name == "local" else engine_of(loaded)(config)
    learner: Any = engine.learner
    steps = learner if name == "local" else learner._workers
    method = "_step" if name == "local" else "step"
    setattr(steps, method, seconds.timed("optimizer", getattr(steps, method)))
    return Side(name, loaded, engine, seconds)


async def take_step(side: Side, setup: Any, tasks: list[Task], number: int) -> None:
    config, seconds, learner = side.loaded.config.astune, side.seconds, side.engine.learner
    with seconds.of("rollout"):
        groups = await run_groups(
            tasks,
            config.rollout.num_repeat,
            setup,
            seed=config.seed,
            sampling=sampling_for(config, "sampled"),
            max_concurrent=config.rollout.max_concurrent,
            label=f"train/{number}",
        )
    ruled = BatchRules.of(config, side.engine.policy.context_length)(groups)
    side.samples, _ = to_samples(ruled.groups, load_estimator(config.algorithm), weighting_for(config), ruled.left_out)
    side.trained.append(sum(sum(weight > 0 for weight in sample.weights) for sample in side.samples))
    began = time.perf_counter()
    await learner.update(side.samples, 1e-4)
    seconds.add("gradient", time.perf_counter() - began - seconds.parts["optimizer"][-1])
    began = time.perf_counter()
    await learner.publish()
    handed: dict[str, float] = getattr(learner, "_handed", {})
    hand_over, compare = (handed.get(f"time/{name}", 0.0) for name in ("hand_over", "compare"))
    taken = time.perf_counter() - began
    if side.name == "local":
        hand_over = taken
    seconds.add("hand-over", hand_over)
    seconds.add("compare", compare)
    seconds.add("score", taken - hand_over - compare)
    with tempfile.TemporaryDirectory() as folder, seconds.of("save"):
        learner.save(Path(folder))


def take_limits(model: Any, samples: Sequence[Sample], most_tokens: int, limits: Seconds) -> None:
    """The same rows in a plain loop, and the same weights through Ray."""
    import ray
    from training_step import padded_batches, train_padded

    with limits.of("gradient"):
        for batch in padded_batches(samples, most_tokens):
            train_padded(model, batch)
    model.zero_grad(set_to_none=True)
    weights = dict(model.state_dict())
    with limits.of("hand-over"):
        ray.get(ray.put(weights))
    with tempfile.TemporaryDirectory() as folder, limits.of("save"):
        model.save_pretrained(folder)


async def measure(sides: list[Side], rounds: int) -> Seconds:
    from transformers import AutoModelForCausalLM

    limits, loader = Seconds(), AutoModelForCausalLM
    model: Any = loader.from_pretrained(tiny_model_dir())
    config = sides[0].loaded.config.astune
    tasks = list(read_tasks(config).training)[: 16 * (rounds + 1)]
    async with AsyncExitStack() as stack:
        setups = []
        for side in sides:
            await side.engine.learner.publish()
            setups.append(set_up_rollouts(side.loaded.config.astune, side.engine))
            await stack.enter_async_context(setups[-1].open())
        for number in range(rounds + 1):  # the first is not counted
            turn = [*zip(sides, setups, strict=True)]
            for side, setup in turn if number % 2 else reversed(turn):
                await take_step(side, setup, tasks[16 * number :][:16], number)
            take_limits(model, sides[0].samples, config.trainer.micro_batch_tokens, limits)
    return limits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    sides = [started("verl"), started("local")]
    try:
        limits = asyncio.run(measure(sides, given.rounds))
    finally:
        for side in sides:
            side.engine.close()
    of = {side.name: side.seconds for side in sides}
    limits.parts["rollout"] = of["local"].parts["rollout"]
    rows = []
    for part in (*PARTS, "step"):
        names = STEP if part == "step" else (part,)
        values = [sum(each.median(name) for name in names) for each in (of["local"], of["verl"], limits)]
        rows.append([part, *(f"{value:.2f}" if value else "" for value in values)])
    rows.append(["start", *(f"{of[name].parts['start'][0]:.0f}" for name in ("local", "verl")), ""])
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    differ = [abs(a - b) / max(a, b) for a, b in zip(*(side.trained for side in sides), strict=True)]
    title = f"Seconds of a step of the demo, medians of {given.rounds}; load {load}; trained tokens differ by up to "
    Console(width=140).print(table_of(f"{title}{max(differ):.1%}", ["", "local", "verl", "limit of verl's"], rows))


if __name__ == "__main__":
    main()
