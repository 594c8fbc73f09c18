"""How long until the demo's agent solves 90 % of the held-out tasks: ASTune's local backbone beside TRL's GRPOTrainer.

    .venv-bench/bin/python benchmarks/demo_vs_trl.py --seeds 42 1 2              # twenty minutes

The task is the demo's (`tutorial/math_agent`): word problems, a calculator as a tool, the model that ASTune ships, a
reward for the right answer. Both have its 16 tasks x 8 attempts a step, temperature 1, learning rate and warm-up,
AdamW, full weights in float32, and no reference model. ASTune plays an AgentScope agent, as `astune demo` does. TRL
plays its own loop of turns with `tools=[calculator]`, which needs no agent; it takes the same messages and tokens,
`loss_type` and advantages as its authors set them. It limits a conversation (192 tokens after the prompt) and not, as
ASTune does, each answer (48, at most six).

Each has a process of its own, as it comes, with as many threads, and they take turns step by step, so that whatever
else the machine does falls on both. Every `--every` steps the held-out tasks are played by ASTune's evaluation with
the weights of each, off the clock (greedily, 90 % is a matter of five steps). A side is done when it solves `--wanted`
of them. What counts are the seconds of the steps until then.
"""

from __future__ import annotations

from trl_beside import NAME as TRL_NAME, trl  # isort: skip  (before astune: as things were)
import astune.backbone.local  # noqa: F401  # isort: skip  (before torch: it says how torch's threads wait)

import argparse
import asyncio
import contextlib
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from bench_table import table_of
from rich.console import Console

from astune.backbone.local.engine import load_engine
from astune.config.load import load_config
from astune.context_tracker.model_dir import resolve_model_dir
from astune.rollout.metrics import evaluation_metrics
from astune.support.short_pauses import short_pauses
from astune.training.loop import train_step
from astune.training.rollout_setup import sampling_for
from astune.training.run import roll_out
from astune.training.start import assemble, read_inputs
from astune.types import Task

DEMO = Path(__file__).parents[1] / "tutorial" / "math_agent"
SYSTEM = "Use the calculator. End with: The answer is N."
CONVERSATION = 192
"""Tokens that TRL gives a conversation after its prompt; the task takes up to three answers of some 25."""
ASTUNE, TRL = "ASTune, AgentScope agent", f"{TRL_NAME}, its own loop"


@dataclass
class Side:
    """What a side has done: the seconds of its steps, and how much of the held-out tasks it solved after which."""

    seconds: list[float] = field(default_factory=list)
    solved: dict[int, float] = field(default_factory=dict)

    def reached(self, wanted: float) -> int | None:
        """The first step after which so much was solved, as far as it was looked."""
        return next((step for step, share in self.solved.items() if share >= wanted), None)

    def seconds_to(self, wanted: float) -> float | None:
        step = self.reached(wanted)
        return None if step is None else sum(self.seconds[:step])


class Ours:
    """A run of the demo that stands between two steps."""

    def __init__(self, seed: int, given: argparse.Namespace, folder: Path, stack: contextlib.ExitStack) -> None:
        overrides = (
            f"astune.runs_dir={folder}",
            f"astune.seed={seed}",
            f"astune.trainer.total_steps={given.steps}",
            f"astune.evaluation={{before: false, every: 0, after: true, decoding: [{given.decoding}]}}",
            "astune.monitor={progress: 'off', trackers: []}",
        )
        loaded = load_config(DEMO / "demo.yaml", overrides)
        self._run = assemble(loaded, read_inputs(loaded.config.astune, stack), None, load_engine, stack, None)
        self._loop = asyncio.new_event_loop()
        stack.callback(self._loop.close)
        (evaluation,) = self._run.evaluations
        self._held_out = evaluation._replace(tasks=evaluation.tasks[: given.tasks])

    def tasks(self, step: int) -> list[Task]:
        """Those of a step."""
        return list(self._run.schedule.tasks(step))  # type: ignore[union-attr]

    def step(self) -> None:
        self._loop.run_until_complete(train_step(self._run))

    def solved(self, weights: Mapping[str, torch.Tensor] | None = None) -> float:
        """The share of the held-out tasks that are solved, by its own weights or by those that are given."""
        return self._loop.run_until_complete(self._solved(weights))

    async def _solved(self, weights: Mapping[str, torch.Tensor] | None) -> float:
        run, held_out = self._run, self._held_out
        if weights is not None:
            run.only.learner._loaded.model.load_state_dict(weights)  # type: ignore[attr-defined]
        await run.only.learner.publish()
        sampling = sampling_for(run.config, held_out.decoding)
        groups = await roll_out(run, held_out.tasks, 1, sampling, "held out", "held out")
        await run.only.learner.publish()
        return evaluation_metrics(groups, 0.0)["success"]


def grpo(steps: int, seed: int, tasks: int) -> dict[str, Any]:
    """What TRL's GRPOConfig is given."""
    return {
        "seed": seed,
        "per_device_train_batch_size": tasks * 8,
        "num_generations": 8,
        "max_completion_length": CONVERSATION,
        "max_tool_calling_iterations": 5,
        "max_steps": steps,
        "learning_rate": 6e-4,
        "warmup_steps": 5,
        "lr_scheduler_type": "linear",
        "shuffle_dataset": False,
    }


def prompt(query: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": query}]


def race(seed: int, given: argparse.Namespace) -> dict[str, Side]:
    """Both sides of one seed, until both have reached what is wanted or the steps are over."""
    ours, theirs = Side(), Side()
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack, short_pauses():  # as in a run
        folder = Path(name)
        run = Ours(seed, given, folder / "run", stack)
        examiner = Ours(seed, given, folder / "examiner", stack)
        tasks = [task for step in range(given.steps) for task in run.tasks(step)]
        rows = [{"prompt": prompt(task.query), "answer": task.answer} for task in tasks]
        config = grpo(given.steps, seed, len(tasks) // given.steps)
        threads = torch.get_num_threads()
        peer = stack.enter_context(trl(resolve_model_dir("tiny"), rows, "answer", config, DEMO, threads))
        for step in range(1, given.steps + 1):
            theirs.seconds.append(peer.step()["seconds"])
            began = time.perf_counter()
            run.step()
            ours.seconds.append(time.perf_counter() - began)
            if step % given.every == 0:
                peer.save(folder / "trl.pt")
                ours.solved[step] = run.solved()
                theirs.solved[step] = examiner.solved(torch.load(folder / "trl.pt"))
                one, other = (f"{side.solved[step]:.0%} after {sum(side.seconds):.0f} s" for side in (ours, theirs))
                print(f"seed {seed}, step {step}: ASTune {one}, TRL {other}", file=sys.stderr, flush=True)
            if all(side.reached(given.wanted) for side in (ours, theirs)):
                break
    return {ASTUNE: ours, TRL: theirs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[42])
    parser.add_argument("--steps", type=int, default=100, help="most steps of each side")
    parser.add_argument("--every", type=int, default=5, help="steps between two looks at the held-out tasks")
    parser.add_argument("--tasks", type=int, default=400, help="held-out tasks that are played")
    parser.add_argument("--decoding", choices=("sampled", "greedy"), default="sampled", help="of the held-out tasks")
    parser.add_argument("--wanted", type=float, default=0.9)
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    rows = []
    for seed in given.seeds:
        sides = race(seed, given)
        first = sides[ASTUNE].seconds_to(given.wanted)
        for name, side in sides.items():
            step, seconds = side.reached(given.wanted), side.seconds_to(given.wanted)
            times = "" if first is None or seconds is None or name == ASTUNE else f"{seconds / first:.2f}"
            reached = ("not reached", "") if step is None else (str(step), f"{seconds:.0f}")
            best = f"{max(side.solved.values(), default=0.0):.1%}"
            rows.append((str(seed), name, *reached, f"{statistics.median(side.seconds):.2f}", best, times))
    columns = ("seed", "", "steps", "seconds", "s a step", "most solved", "times ASTune")
    Console(width=140).print(
        table_of(f"To {given.wanted:.0%} of {given.tasks} held-out tasks, {given.decoding}", columns, rows, left=2)
    )
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
