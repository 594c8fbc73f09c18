"""Forward and backward pass over prefix trees beside padded rows: seconds, and how much of the saving is reached.

    .venv-bench/bin/python benchmarks/training_step.py

R is the ratio of tokens in the rows to tokens in the trees: the speed-up if a token always cost the same. Padded rows
are given every advantage that a plain trainer has: sorted by length, cut into batches of the same number of tokens
as the trees, causal attention without a mask, logits only where there is a loss. The gradients of the two are
compared. "demo" are real episodes of the demo's agent (tools, several turns); "a x b (p + n)" are a groups of b
attempts with p tokens of prompt and n of answer.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as ASTune's local backbone sets it; torch reads it when imported

import argparse
import asyncio
import contextlib
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from bench_table import table_of
from rich.console import Console
from transformers import AutoModelForCausalLM

from astune.algorithm import to_samples
from astune.backbone.local.engine import load_engine
from astune.backbone.local.learning.batch import micro_batches
from astune.backbone.local.learning.learner import LocalLearner
from astune.backbone.local.model.model import load_model
from astune.backbone.local.sampling.sampler import Sampler
from astune.config.load import load_config
from astune.config.schema import AlgorithmConfig, ModelConfig, TrainerConfig
from astune.context_tracker.model_dir import resolve_model_dir
from astune.training.rollout_setup import sampling_for
from astune.training.run import roll_out
from astune.training.start import assemble, read_inputs
from astune.types import Sample, Span, Timeline

SHAPES = ((8, 8, 90, 64), (2, 8, 512, 64), (2, 8, 512, 256), (1, 16, 1024, 128))
DEMO = Path(__file__).parents[1] / "tutorial/math_agent/demo.yaml"
CPU = torch.device("cpu")


def synthetic(groups: int, repeat: int, prompt: int, answer: int) -> list[Sample]:
    chance = random.Random(0)

    def some(count: int) -> tuple[int, ...]:
        return tuple(chance.randrange(10, 1000) for _ in range(count))

    samples = []
    for group in range(groups):
        question = some(prompt)
        for attempt in range(repeat):
            span = Span(0, prompt, prompt + answer, 0, 1.0, True, (-7.0,) * answer)
            line = Timeline("agent", question + some(answer), (span,))
            weight = 1 / (groups * repeat * answer)
            samples.append(Sample(line, (attempt % 2 - 0.5,), (weight,), f"{group}", f"{group}/{attempt}"))
    return samples


def demo_episodes() -> list[Sample]:
    """The training rows of a step of the demo, all groups taken as if they had a signal."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        overrides = [f"astune.runs_dir={folder}", "astune.monitor.progress='off'", "astune.monitor.tensorboard=false"]
        loaded = load_config(DEMO, overrides)
        run = assemble(loaded, read_inputs(loaded.config.astune, stack), None, load_engine, stack, None)
        repeat, sampling = run.config.rollout.num_repeat, sampling_for(run.config, "sampled")
        groups = asyncio.run(roll_out(run, run.schedule.tasks(0), repeat, sampling, "rollout", "train/1"))
    return to_samples(groups, lambda rewards: [number % 2 - 0.5 for number in range(len(rewards))])[0]


def padded_batches(samples: Sequence[Sample], most_tokens: int) -> Iterator[list[Sample]]:
    batch: list[Sample] = []
    for sample in sorted(samples, key=lambda sample: len(sample.timeline.token_ids)):
        if batch and (len(batch) + 1) * len(sample.timeline.token_ids) > most_tokens:
            yield batch
            batch = []
        batch.append(sample)
    yield batch


def train_padded(model: Any, batch: Sequence[Sample]) -> None:
    """Adds the gradient of `-logprob x advantage`, which is that of the clipped ratio while the ratio is 1."""
    rows = [torch.tensor(list(sample.timeline.token_ids)) for sample in batch]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(model.device)
    mask = torch.zeros_like(ids, dtype=torch.bool)
    credit = torch.zeros(ids.shape, device=model.device)
    for number, sample in enumerate(batch):
        for span, advantage, weight in zip(sample.timeline.spans, sample.advantages, sample.weights, strict=True):
            mask[number, span.start : span.stop] = weight > 0
            credit[number, span.start : span.stop] = advantage * weight
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
    logprobs = torch.log_softmax(model.lm_head(hidden[:, :-1][mask[:, 1:]]), -1)
    (-(logprobs.gather(1, ids[mask][:, None])[:, 0] * credit[mask]).sum()).backward()


def gradient(model: Any) -> torch.Tensor:
    found = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    model.zero_grad(set_to_none=True)
    return found


def measure(path: str, name: str, samples: list[Sample], rounds: int) -> list[str]:
    loaded = load_model(ModelConfig(path=path, device="cpu"))
    plain = AutoModelForCausalLM.from_pretrained(resolve_model_dir(path), dtype=torch.float32)
    trainer = TrainerConfig()
    sampler = Sampler(loaded.sampling_model, slots=1, context_length=loaded.context_length)
    learner = LocalLearner(loaded, sampler, AlgorithmConfig(loss="reinforce"), trainer)

    def trees() -> None:
        for batch in micro_batches(samples, trainer.micro_batch_tokens, CPU):
            learner._backward(batch, True, None)

    def rows() -> None:
        for batch in padded_batches(samples, trainer.micro_batch_tokens):
            train_padded(plain, batch)

    seconds: dict[Any, list[float]] = {trees: [], rows: []}
    for number in range(rounds + 1):
        gradients = {}
        for train, model in ((rows, plain), (trees, loaded.model)):
            started = time.perf_counter()
            train()
            if number:  # the first is warm-up
                seconds[train].append(time.perf_counter() - started)
            gradients[train] = gradient(model)
    difference = (gradients[rows] - gradients[trees]).norm() / gradients[rows].norm()
    flattened = sum(len(sample.timeline.token_ids) for sample in samples)
    packed = sum(batch.tokens.numel() for batch in micro_batches(samples, trainer.micro_batch_tokens, CPU))
    speedup = statistics.median(a / b for a, b in zip(seconds[rows], seconds[trees], strict=True))
    return [
        name,
        str(flattened),
        str(packed),
        f"{flattened / packed:.2f}",
        f"{statistics.median(seconds[rows]):.3f}",
        f"{statistics.median(seconds[trees]):.3f}",
        f"{speedup:.2f}",
        f"{speedup / (flattened / packed):.2f}",
        f"{difference:.0e}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny", help="'tiny' or a folder with a Qwen3 model")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    columns = ("", "tokens in rows", "in trees", "R", "rows s", "trees s", "speed-up", "of R", "gradients differ by")
    rows = [measure(options.model, "demo", demo_episodes(), options.rounds)]
    for groups, repeat, prompt, answer in SHAPES:
        samples = synthetic(groups, repeat, prompt, answer)
        rows.append(measure(options.model, f"{groups} x {repeat} ({prompt} + {answer})", samples, options.rounds))
    console = Console(width=140)
    console.print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, load average {os.getloadavg()[0]:.1f}"
    )
    console.print(table_of(f"forward and backward pass, medians of {options.rounds}", columns, rows))


if __name__ == "__main__":
    main()
