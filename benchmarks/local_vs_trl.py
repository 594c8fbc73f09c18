"""One step of reinforcement learning: ASTune's local backbone beside TRL's GRPOTrainer.

    make bench                                                            # the environment, then this file
    .venv-bench/bin/python benchmarks/local_vs_trl.py --steps 20 --prompt-tokens 0
    .venv-bench/bin/python benchmarks/local_vs_trl.py --model 83M --steps 1 --warm-up 1 --agents agentscope

Both do the same work: the shipped model, full weights in float32, no reference model; every step 8 prompts with 8
answers each at temperature 1, one AdamW update, the same learning rate, the same reward function. An answer always
has 64 tokens, so that neither side gains by a policy that stops early: TRL is told `min_new_tokens`, ASTune's
sampler gets no stop tokens. Each has a process of its own, as it comes, with as many threads, and they take turns step
by step (TRL, ASTune, TRL, ...), so that whatever else the machine does falls on both; the ratio is the median over the
pairs. The clock runs over whole steps, logging included.

ASTune's side is its real loop: episodes, an agent per attempt, token-exact timelines, the run folder. The agents
are those of `answer_agents.py`. The floor is the one of `floor.py`: what the same tokens cost in plain torch loops.

Prompts have about 97 tokens, and in a second table about 400, as tool descriptions make them. `83M` and `0.6B` are
Qwen3 of those sizes with random weights and the shipped tokenizer.
"""

from __future__ import annotations

from trl_beside import NAME as TRL, trl  # isort: skip  (before astune: as things were)
import astune.backbone.local  # noqa: F401  # isort: skip  (before torch: it says how torch's threads wait)

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from answer_agents import AgentScope, OpenAIClient, TunerChat, messages
from bench_table import table_of
from floor import Shape, generation_seconds, training_seconds
from gpu.shapes import model_folder
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM

from astune.backbone.local.engine import load_engine
from astune.backbone.local.model.products import quicken_linear
from astune.config.load import load_config
from astune.config.schema import AstuneConfig
from astune.context_tracker.model_dir import resolve_model_dir
from astune.monitor.metrics import read_metrics
from astune.support.short_pauses import short_pauses
from astune.training.engine import Engine
from astune.training.loop import train_step
from astune.training.start import assemble, read_inputs
from astune.types import Generation, Policy, Sampling

PROMPTS, REPEAT, ANSWER = 8, 8, 64
LEARNING_RATE = 1e-6
TASKS = Path(__file__).parents[1] / "tutorial/math_agent/data/train.jsonl"


@dataclass(frozen=True)
class Step:
    """Seconds of one step and of its two halves, and the tokens it was made of."""

    seconds: float
    rollout: float
    sampled: int
    prompt: int
    computed: int
    """Tokens that went through the forward and backward pass, padding included."""


class FullLength:
    """The sampler, made to go on after a stop token."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.context_length = policy.context_length

    async def generate(self, prompt_ids: Any, sampling: Sampling) -> Generation:
        return await self._policy.generate(prompt_ids, replace(sampling, stop_token_ids=()))


@dataclass(frozen=True)
class Way:
    """How an answer is asked for."""

    agent: type
    workers: int = 0
    """Processes that play the episodes; 0: the one that samples."""


WAYS = {
    "agentscope": ("ASTune, AgentScope agent", Way(AgentScope)),
    "workers": ("the same, two workers", Way(AgentScope, 2)),
    "openai": ("ASTune, tuner.openai_client", Way(OpenAIClient)),
    "chat": ("ASTune, tuner.chat", Way(TunerChat)),
}


def full_length(config: AstuneConfig) -> Engine:
    engine = load_engine(config)
    return replace(engine, policy=FullLength(engine.policy))


class Ours:
    """A run of the local backbone that stands between two steps."""

    def __init__(self, way: Way, model: str, queries: list[str], folder: Path, stack: contextlib.ExitStack) -> None:
        folder.mkdir()
        (folder / "tasks.jsonl").write_text("\n".join(json.dumps({"query": query}) for query in queries))
        astune_config = {
            "runs_dir": str(folder),
            "model": {"path": model, "device": "cpu"},
            "task_reader": {"jsonl": {"training": {"file_path": "tasks.jsonl"}}},
            "rollout": {
                "agentscope_learn_protocol": f"{Path(__file__).with_name('answer_agents.py')}:{way.agent.__name__}",
                "workers": way.workers,
                "num_repeat": REPEAT,
                "max_concurrent": PROMPTS * REPEAT,
                "max_tokens": ANSWER,
            },
            "trainer": {"tasks_per_step": PROMPTS, "learning_rate": LEARNING_RATE},
            "monitor": {"progress": "off", "trackers": []},
        }
        (folder / "job.yaml").write_text(json.dumps({"astune": astune_config}))
        loaded = load_config(folder / "job.yaml")
        self._loop = asyncio.new_event_loop()
        self._run = assemble(loaded, read_inputs(loaded.config.astune, stack), None, full_length, stack, None)
        opened = self._run.setup.open()
        self._loop.run_until_complete(opened.__aenter__())
        stack.callback(lambda: self._loop.run_until_complete(opened.__aexit__(None, None, None)))

    def step(self) -> Step:
        started = time.perf_counter()
        self._loop.run_until_complete(train_step(self._run))
        seconds = time.perf_counter() - started
        figures = read_metrics(self._run.run_dir.metrics_path)[-1]
        assert figures["turns/mean"] == 1 and figures["groups/no_signal"] == 0, figures
        return Step(
            seconds,
            figures["time/rollout"],
            int(figures["tokens/sampled"]),
            int(figures["tokens/prompt"]),
            int(figures["tokens/packed"]),
        )


GRPO = {
    "per_device_train_batch_size": PROMPTS * REPEAT,
    "num_generations": REPEAT,
    "max_completion_length": ANSWER,
    "generation_kwargs": {"min_new_tokens": ANSWER},
    "learning_rate": LEARNING_RATE,
    "lr_scheduler_type": "constant",
}


class Floor:
    """The cost of the same tokens in plain loops, trained over as many as the step of ASTune before it."""

    def __init__(self, model_dir: Path, prompt_tokens: int) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
        quicken_linear(self._model)
        self._shape = Shape(PROMPTS, REPEAT, prompt_tokens, ANSWER)

    def step(self, distinct: int) -> Step:
        shape = self._shape
        generation = generation_seconds(self._model, shape)
        training = training_seconds(self._model, shape, distinct)
        sampled, prompt = shape.rows * shape.answer, shape.rows * shape.prompt
        return Step(generation + training, generation, sampled, prompt, distinct)


def measure(
    model_dir: Path, agents: Sequence[str], warm_up: int, steps: int, prompt_tokens: int
) -> dict[str, list[Step]]:
    """Steps of everybody, warm-up left out; entry i of each stands for the same stretch of time."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_dir)
    queries = [padded(json.loads(line)["query"], prompt_tokens, tokenizer) for line in TASKS.open()]
    rows = [{"prompt": messages(query)} for query in queries]
    grpo = {**GRPO, "max_steps": warm_up + steps}
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack, short_pauses():  # as in a run
        folder = Path(name)
        peer = stack.enter_context(trl(model_dir, rows, "text", grpo, threads=torch.get_num_threads()))
        sides = {}
        for agent in agents:
            side, way = WAYS[agent]
            sides[side] = Ours(way, str(model_dir), queries, folder / agent, stack)
        floor = Floor(model_dir, prompt_length(queries, tokenizer))
        found: dict[str, list[Step]] = {side: [] for side in (TRL, *sides, "floor")}
        for _ in range(warm_up + steps):
            found[TRL].append(Step(**peer.step()))
            for side, ours in sides.items():
                found[side].append(ours.step())
            found["floor"].append(floor.step(found[side][-1].computed))
    return {side: taken[warm_up:] for side, taken in found.items()}


@contextlib.contextmanager
def folder_of(model: str) -> Iterator[Path]:
    """Where a model and its tokenizer are."""
    if model not in ("83M", "0.6B"):
        yield resolve_model_dir(model)
        return
    with tempfile.TemporaryDirectory() as name:
        for source in (resolve_model_dir("tiny"), model_folder(model, torch.device("cpu"))):
            for file in source.iterdir():  # the weights come last, and stay where they are
                (Path(name) / file.name).unlink(missing_ok=True)
                (Path(name) / file.name).symlink_to(file)
        yield Path(name)


def prompt_length(queries: list[str], tokenizer: Any) -> int:
    lengths = [len(tokenizer.apply_chat_template(messages(query), return_dict=False)) for query in queries[:200]]
    return round(statistics.mean(lengths))


def padded(query: str, prompt_tokens: int, tokenizer: Any) -> str:
    """`query` after as much other text as makes the prompt about `prompt_tokens` long, as tool descriptions do."""
    missing = prompt_tokens - len(tokenizer.apply_chat_template(messages(query), return_dict=False))
    filler = tokenizer.decode(tokenizer("The shop opens at nine. " * (max(missing, 0) // 3 + 1))["input_ids"][:missing])
    return f"{filler if missing > 0 else ''}{query}"


def table(found: dict[str, list[Step]]) -> Table:
    def median(values: Any) -> float:
        return statistics.median(list(values))

    base, floor = next(iter(found)), found["floor"]
    rows = []
    for side, steps in found.items():
        seconds = median(step.seconds for step in steps)
        row = (
            side,
            f"{PROMPTS * REPEAT / seconds:.1f}",
            f"{median(step.sampled / step.rollout for step in steps):.0f}",
            f"{seconds:.3f}",
            f"{median(step.rollout for step in steps):.3f}",
            f"{median(step.seconds - step.rollout for step in steps):.3f}",
            f"{median(a.seconds / b.seconds for a, b in zip(found[base], steps, strict=True)):.2f}",
            f"{median(b.seconds / a.seconds for a, b in zip(floor, steps, strict=True)):.2f}",
            *(f"{median(getattr(step, field) for step in steps):.0f}" for field in ("sampled", "prompt", "computed")),
        )
        rows.append(row)
    speeds = ("rollouts/s", "tokens/s", "s/step", "rollout s", "training s", f"x {base}", "x floor")
    title = f"{PROMPTS} prompts x {REPEAT} answers a step, medians of {len(floor)} steps"
    return table_of(title, ("", *speeds, "tokens sampled", "of prompts", "trained over"), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model", default="tiny", help="'tiny', '83M', '0.6B' or a folder with a Qwen3 and a chat template"
    )
    parser.add_argument("--agents", nargs="+", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--warm-up", type=int, default=2, help="steps of each side that are not measured")
    parser.add_argument("--steps", type=int, default=10, help="measured steps of each side")
    parser.add_argument(
        "--prompt-tokens",
        type=int,
        nargs="+",
        default=[0, 400],
        help="lengthen prompts to about so many; 0: as they are",
    )
    parser.add_argument("--threads", type=int, default=0, help="of torch; 0: torch decides")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    warnings.filterwarnings("ignore")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    console = Console(width=160)
    for prompt_tokens in options.prompt_tokens:
        with folder_of(options.model) as model_dir:
            found = measure(model_dir, options.agents, options.warm_up, options.steps, prompt_tokens)
        console.print(
            f"torch {torch.__version__}, {torch.get_num_threads()} threads, transformers {transformers.__version__}, "
            f"ASTune's GOMP_SPINCOUNT={os.environ.get('GOMP_SPINCOUNT')}, load average {os.getloadavg()[0]:.1f}"
        )
        console.print(table(found))


if __name__ == "__main__":
    main()
