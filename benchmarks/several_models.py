"""How long does a step with two adapters take, beside the same step with one, and beside two runs of one each?

Two agents of an episode answer each other by turns. In one run both are one model; in the other each is a model of its
own (`astune.models`), so that one pass of the sampler answers for two adapters, and each learns from its own turns. Two
runs, one for each model, would play every episode twice: twice the first. Steps are taken in turn, on the same tasks,
with answers of the same length; a time is the processor's, and a ratio the median of those of the rounds, so that
others on the machine count little. Each agent has a system prompt of its own; with `--alike` both have the same text
before them, which one model computes once, and two models once each.

Memory is what the tensors take that a step leaves: the base, the adapters, the optimizers.

    .venv/bin/python benchmarks/several_models.py --rounds 7
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench_table import table_of
from rich.console import Console

from astune import Task, Tuner, WorkflowOutput
from astune.backbone.local.engine import load_engine
from astune.config.load import load_config
from astune.training.loop import train_step
from astune.training.run import TrainingRun
from astune.training.start import assemble, read_inputs
from astune.types import Update

AGENTS = ("buyer", "seller")


async def talk(task: Task, tuner: Tuner) -> WorkflowOutput:
    """Four answers by turns. The rewards differ from attempt to attempt, so that every step learns."""
    talk = [{"role": "user", "content": task.query}]
    for agent in AGENTS * 2:
        client = tuner.openai_client(agent)
        role = {"role": "system", "content": task.metadata["role"] or f"You are the {agent}."}
        answer = await client.chat.completions.create(model="m", messages=[role, *talk])
        said = answer.choices[0].message.content or ""
        talk += [{"role": "assistant", "content": said}, {"role": "user", "content": "go on"}]
    return WorkflowOutput(reward=float(sum(map(len, (turn["content"] for turn in talk))) % 7))


def write_job(folder: Path, models: Mapping[str, Any], given: argparse.Namespace) -> Path:
    rows = [{"query": f"{n} + {n}?", "role": given.alike} for n in range(64)]
    (folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    agents = dict.fromkeys(AGENTS, next(iter(models))) if len(models) == 1 else {name: name for name in AGENTS}
    config = {
        "runs_dir": str(folder / "runs"),
        "model": {"path": given.model, "lora": {"rank": given.rank}},
        "models": models,
        "task_reader": {"jsonl": {"training": {"file_path": "tasks.jsonl"}}},
        "rollout": {
            "agentscope_learn_protocol": f"{Path(__file__).absolute()}:talk",
            "max_tokens": given.tokens,
            "agents": agents,
        },
        "trainer": {"total_steps": given.rounds + 1, "learning_rate": 1e-5},
        "monitor": {"progress": "off", "trackers": []},
    }
    (folder / "job.yaml").write_text(json.dumps({"astune": config}))
    return folder / "job.yaml"


def bytes_of(run: TrainingRun) -> int:
    """Bytes of the base, once, and of what each model has for itself."""
    found = {}
    for pupil in run.pupils.values():
        learner: Any = pupil.learner
        states = [value for state in learner._optimizer.state.values() for value in state.values()]
        for tensor in (*learner._loaded.model.parameters(), *states):
            found[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
    return sum(found.values())


def time_updates(run: TrainingRun, spent: list[float]) -> None:
    """Note what each update of a run takes."""
    for pupil in run.pupils.values():
        learner: Any = pupil.learner

        async def update(*given: Any, own: Any = learner.update) -> Update:
            began = time.process_time()
            done: Update = await own(*given)
            spent.append(time.process_time() - began)
            return done

        learner.update = update


async def measure(runs: list[TrainingRun], rounds: int) -> list[list[tuple[float, float]]]:
    """The seconds of each step of each run, and of its updates."""
    seconds: list[list[tuple[float, float]]] = [[] for _ in runs]
    updates: list[list[float]] = [[] for _ in runs]
    for run, spent in zip(runs, updates, strict=True):
        time_updates(run, spent)
    for number in range(rounds + 1):  # the first is not counted: caches grow, modules are imported
        for place in range(len(runs)) if number % 2 else reversed(range(len(runs))):
            updates[place].clear()
            began = time.process_time()
            await train_step(runs[place])
            seconds[place].append((time.process_time() - began, sum(updates[place])))
    return [each[1:] for each in seconds]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=32, help="most tokens of an answer")
    parser.add_argument("--alike", action="store_const", const="You trade.", help="both agents read the same text")
    given = parser.parse_args()
    with contextlib.ExitStack() as stack:
        runs = []
        for models in ({"both": {}}, {name: {} for name in AGENTS}):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            loaded = load_config(write_job(folder, models, given))
            inputs = read_inputs(loaded.config.astune, stack)
            runs.append(assemble(loaded, inputs, None, load_engine, stack, None))
        one, two = asyncio.run(measure(runs, given.rounds))
        memory = [bytes_of(run) / 2**20 for run in runs]
    spent = [[statistics.median(part) for part in zip(*each, strict=True)] for each in (one, two)]
    ratios = [
        statistics.median(b / a for a, b in zip(first, second, strict=True))
        for first, second in zip(zip(*one, strict=True), zip(*two, strict=True), strict=True)
    ]
    rows = [
        ["one adapter", *(f"{each:.3f}" for each in spent[0]), "1.00", "1.00", f"{memory[0]:.1f}"],
        [
            "two adapters",
            *(f"{each:.3f}" for each in spent[1]),
            *(f"{each:.2f}" for each in ratios),
            f"{memory[1]:.1f}",
        ],
        ["two runs of one", *(f"{2 * each:.3f}" for each in spent[0]), "2.00", "2.00", f"{2 * memory[0]:.1f}"],
    ]
    Console().print(table_of("a step", ["", "s", "of it updates", "times one", "updates times one", "MiB"], rows))


if __name__ == "__main__":
    main()
