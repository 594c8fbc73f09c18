"""How many tokens are sampled until the demo's agent solves 90 % of the held-out tasks, where training tasks are of
mixed difficulty: drawn by a curriculum, beside our own dynamic sampling?

    python benchmarks/curriculum.py                       # three seeds; needs torch and AgentScope
    python benchmarks/curriculum.py --seeds 1 --only curriculum
    python benchmarks/curriculum.py --wanted 0.9 --results runs/curriculum.jsonl    # goes on with what is there

The tasks are the demo's (`tutorial/math_agent`), of which a share is made hopeless: their reference answer is another,
as in data that nobody checked. The others are between nearly mastered and rarely solved. Held-out tasks are the demo's
as they are. Every variant has the same tasks, seeds, learning rate and steps of 8 tasks with 8 attempts; what differs
is which tasks a step gets, and so what it costs. Every `--every` steps the held-out tasks are played off the
count; a variant is done when the mean of its last two looks is `--wanted`, and the tokens are those that training had
sampled by then.
"""

from __future__ import annotations

import astune.backbone.local  # noqa: F401  # isort: skip  (before torch: it says how torch's threads wait)

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean

from bench_table import table_of
from rich.console import Console

from astune.backbone.local.engine import load_engine
from astune.config.load import load_config
from astune.monitor.metrics import read_metrics
from astune.rollout.metrics import evaluation_metrics
from astune.support.short_pauses import short_pauses
from astune.training.loop import train_step
from astune.training.rollout_setup import sampling_for
from astune.training.run import TrainingRun, roll_out
from astune.training.start import assemble, read_inputs

DEMO = Path(__file__).parents[1] / "tutorial" / "math_agent"
DYNAMIC = "dynamic sampling"
VARIANTS: Mapping[str, Sequence[str]] = {
    "shuffle": (),
    DYNAMIC: ("astune.algorithm.dynamic_sampling=3",),
    "curriculum": ("astune.trainer.curriculum.enabled=true",),
    "both": ("astune.trainer.curriculum.enabled=true", "astune.algorithm.dynamic_sampling=3"),
}
COMMON = (
    "astune.monitor={progress: 'off', trackers: []}",
    "astune.trainer.tasks_per_step=8",
    "astune.trainer.learning_rate=5e-4",
    "astune.trainer.warmup_steps=0",
    "astune.trainer.lr_schedule=constant",
    "astune.trainer.save_minutes=0",
)


@dataclass
class Outcome:
    """Held-out success, and the tokens that were sampled until then, by step; the last pools."""

    solved: list[float] = field(default_factory=list)
    tokens: list[float] = field(default_factory=list)
    steps: int = 0
    reached: bool = False
    used: float = 0.0
    """The share of groups that had something to teach."""


def write_tasks(folder: Path, given: argparse.Namespace) -> Path:
    """Write the first training tasks of the demo, of every ten as many hopeless as asked for."""
    rows = map(json.loads, (DEMO / "data" / "train.jsonl").read_text().splitlines())
    rows = [row for row in rows if row["steps"] <= given.calculations][: given.tasks]
    kinds = len({row["kind"] for row in rows})
    for number, row in enumerate(rows):
        row["hopeless"] = number // kinds % 10 < 10 * given.hopeless  # of each kind the same share
        if row["hopeless"]:
            row["answer"] = str(int(row["answer"]) + 1000)
    path = folder / "train.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@contextlib.contextmanager
def begin(seed: int, options: Sequence[str], given: argparse.Namespace) -> Iterator[TrainingRun]:
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack, short_pauses():
        path = write_tasks(Path(name), given)
        own = (
            f"astune.runs_dir={name}",
            f"astune.seed={seed}",
            f"astune.trainer.total_steps={given.steps}",
            f"astune.evaluation={{before: false, every: 0, after: true, decoding: [{given.decoding}]}}",
            f"astune.task_reader.jsonl.training.file_path={path}",
            f"astune.task_reader.filter=steps <= {given.calculations}",
            f"astune.task_reader.max_validation_tasks={given.held_out}",
        )
        loaded = load_config(DEMO / "demo.yaml", (*COMMON, *own, *options))
        yield assemble(loaded, read_inputs(loaded.config.astune, stack), None, load_engine, stack, None)


async def train(run: TrainingRun, name: str, given: argparse.Namespace) -> Outcome:
    outcome = Outcome()
    await run.only.learner.publish()
    (held_out,) = run.evaluations
    while run.step < given.steps and not outcome.reached:
        await train_step(run)
        if run.step % given.every:
            continue
        groups = await roll_out(
            run, held_out.tasks, 1, sampling_for(run.config, held_out.decoding), "held out", "held out"
        )
        await run.only.learner.publish()
        rows = read_metrics(run.run_dir.metrics_path)
        outcome.solved.append(evaluation_metrics(groups, 0.0)["success"])
        outcome.tokens.append(sum(row["tokens/sampled"] for row in rows))
        outcome.steps = run.step
        outcome.reached = len(outcome.solved) > 1 and fmean(outcome.solved[-2:]) >= given.wanted
        used = [row["groups/used"] for row in rows]
        outcome.used = sum(used) / sum(row["groups/used"] + row["groups/no_signal"] for row in rows)
        pools = " ".join(f"{key.partition('/')[2]} {rows[-1][key]:.0f}" for key in rows[-1] if "curriculum/" in key)
        said = f"{outcome.solved[-1]:.0%} of held-out after {outcome.tokens[-1]:,.0f} tokens; used {outcome.used:.0%}"
        print(f"seed {run.config.seed}, {name}, step {run.step}: {said} {pools}", file=sys.stderr, flush=True)
    return outcome


def find_outcome(seed: int, name: str, given: argparse.Namespace) -> Outcome:
    """Run a variant, or read what an earlier call found, with the same options."""
    asked = {key: value for key, value in vars(given).items() if key not in ("seeds", "only", "results")}
    asked = {"seed": seed, "variant": name, **asked}
    if given.results is not None and given.results.exists():
        for line in map(json.loads, given.results.read_text().splitlines()):
            if line["asked"] == asked:
                return Outcome(**line["found"])
    with begin(seed, (*VARIANTS[name], *given.options), given) as run:
        found = asyncio.run(train(run, name, given))
    if given.results is not None:
        with given.results.open("a") as file:
            file.write(json.dumps({"asked": asked, "found": asdict(found)}) + "\n")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--only", nargs="+", choices=list(VARIANTS), default=list(VARIANTS), metavar="VARIANT")
    parser.add_argument("--tasks", type=int, default=160, help="training tasks")
    parser.add_argument("--calculations", type=int, default=3, help="most that a task takes, of three")
    parser.add_argument("--hopeless", type=float, default=0.4, help="their share that no answer solves")
    parser.add_argument("--held-out", type=int, default=150, help="held-out tasks")
    parser.add_argument("--steps", type=int, default=120, help="most steps")
    parser.add_argument("--every", type=int, default=5, help="steps between two looks at the held-out tasks")
    parser.add_argument("--decoding", choices=("sampled", "greedy"), default="sampled", help="of the held-out tasks")
    parser.add_argument("--wanted", type=float, default=0.8)
    parser.add_argument("--results", type=Path, help="a file of what was found, which later calls go on with")
    parser.add_argument("options", nargs="*", help="more keys of every variant, as astune.trainer.learning_rate=1e-4")
    given = parser.parse_args()
    rows = []
    for seed in given.seeds:
        found = {name: find_outcome(seed, name, given) for name in given.only}
        base = found.get(DYNAMIC)
        for name, each in found.items():
            known = base is not None and base.reached and each.reached
            times = f"{base.tokens[-1] / each.tokens[-1]:.2f}" if known and base else ""
            steps = str(each.steps) if each.reached else "not reached"
            best = f"{max(each.solved, default=0.0):.0%}"
            rows.append((str(seed), name, steps, f"{each.tokens[-1]:,.0f}", f"{each.used:.0%}", best, times))
    title = f"To {given.wanted:.0%} of {given.held_out} held-out tasks, {given.decoding}"
    columns = ("seed", "", "steps", "tokens", "groups used", "most solved", "fewer than dynamic sampling")
    Console(width=130).print(table_of(title, columns, rows, left=2))
    print(f"{given.tasks} training tasks, {given.hopeless:.0%} of them hopeless")


if __name__ == "__main__":
    main()
