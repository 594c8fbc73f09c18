"""Forward and backward pass over prefix trees beside padded rows: seconds, and how much of the saving is reached.

    .venv-bench/bin/python benchmarks/training_step.py

R is the ratio of tokens in the rows to tokens in the trees: the speed-up if a token always cost the same. It does not:
every token looks at all before it, in a tree as in a row. "limit" is the ratio of the floating-point operations of the
two: products with weights, logits where there is a loss, and attention over the pairs that see each other. Padded rows
are given every advantage that a plain trainer has: sorted by length, cut into batches of the same number of tokens
as the trees, causal attention without a mask, logits only where there is a loss, ASTune's operators. The gradients are
compared. "demo" are real episodes of the demo's agent (tools, several turns); "a x b (p + n)" are a groups of b
attempts with p tokens of prompt and n of answer. "20 turns" are four attempts of 200 + 20 x (60 sampled + 30) tokens;
"reasoning dropped" two of 20 turns of which 60 tokens are forgotten at each and 50 stay; "sub-agents" four, each with
four agents of three turns below one, that share a prompt of 300. "MiB" is what the largest batch keeps for its backward
pass beside the weights, "processor" the share of the limit in time of the processor, which a busy machine changes less.
"""

from __future__ import annotations

import astune.backbone.local  # noqa: F401  # isort: skip  (before torch: it says how torch's threads wait)

import argparse
import asyncio
import contextlib
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from bench_table import table_of
from gpu.shapes import Shape, tree_flops
from rich.console import Console
from transformers import AutoModelForCausalLM

from astune.algorithm import to_samples
from astune.backbone.local.engine import load_engine
from astune.backbone.local.learning.batch import micro_batches
from astune.backbone.local.learning.learner import LocalLearner
from astune.backbone.local.model.model import load_model
from astune.backbone.local.model.norms import quicken
from astune.backbone.local.model.products import quicken_linear
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


def row(tokens: Sequence[int], spans: Sequence[tuple[int, int]], group: str, attempt: int) -> Sample:
    found = tuple(
        Span(turn, start, stop, 0, 1.0, True, (-7.0,) * (stop - start)) for turn, (start, stop) in enumerate(spans)
    )
    weights = (1 / 4096,) * len(found)
    return Sample(
        Timeline("agent", tuple(tokens), found), (attempt % 2 - 0.5,) * len(found), weights, group, f"{attempt}"
    )


def growing(some: Any, prompt: Sequence[int], turns: int, sampled: int, read: int, attempt: int) -> Sample:
    """A history that only grows: one row."""
    spans = [
        (len(prompt) + turn * (sampled + read), len(prompt) + turn * (sampled + read) + sampled)
        for turn in range(turns)
    ]
    return row((*prompt, *some(turns * (sampled + read) - read)), spans, "growing", attempt)


def agents() -> dict[str, list[Sample]]:
    """Episodes of many turns, by name."""
    chance = random.Random(0)

    def some(count: int) -> tuple[int, ...]:
        return tuple(chance.randrange(10, 1000) for _ in range(count))

    prompt, task = some(200), some(300)
    dropping = []
    for attempt in range(2):
        history = prompt
        for _ in range(20):
            turn = (*history, *some(60), *some(20))
            dropping.append(row(turn, [(len(history), len(turn))], "dropping", attempt))
            history = (*history, *turn[-20:], *some(30))
    nested = [growing(some, task, 4, 40, 20, attempt) for attempt in range(4)]
    below = some(300)
    nested += [growing(some, below, 3, 40, 20, attempt) for attempt in range(4) for _ in range(4)]
    return {
        "20 turns": [growing(some, prompt, 20, 60, 30, attempt) for attempt in range(4)],
        "reasoning dropped": dropping,
        "sub-agents": nested,
    }


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
        overrides = [f"astune.runs_dir={folder}", "astune.monitor.progress='off'", "astune.monitor.trackers=[]"]
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


@contextlib.contextmanager
def keeping(model: Any) -> Iterator[dict[int, int]]:
    """The bytes that are kept for a backward pass within, by address, but for the weights."""
    weights, kept = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}, {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        yield kept


def gradient(model: Any) -> torch.Tensor:
    found = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    model.zero_grad(set_to_none=True)
    return found


def measure(path: str, name: str, samples: list[Sample], rounds: int) -> list[str]:
    loaded = load_model(ModelConfig(path=path, device="cpu"))
    plain = AutoModelForCausalLM.from_pretrained(resolve_model_dir(path), dtype=torch.float32)
    quicken(plain)
    quicken_linear(plain)
    trainer = TrainerConfig()
    sampler = Sampler(loaded.sampling_model, slots=1, context_length=loaded.context_length)
    learner = LocalLearner(loaded, sampler, AlgorithmConfig(loss="reinforce"), trainer)

    def trees() -> Iterator[Callable[[], object]]:
        for batch in micro_batches(samples, trainer.micro_batch_tokens, CPU):
            yield partial(learner._backward, batch, True, None)

    def rows() -> Iterator[Callable[[], object]]:
        for batch in padded_batches(samples, trainer.micro_batch_tokens):
            yield partial(train_padded, plain, batch)

    kept: dict[Any, int] = {}  # measured while warming up
    for train, model in ((rows, plain), (trees, loaded.model)):
        kept[train] = 0
        for step in train():
            with keeping(model) as found:
                step()
            kept[train] = max(kept[train], sum(found.values()))
        gradient(model)
    seconds: dict[Any, list[float]] = {trees: [], rows: []}
    worked: dict[Any, list[float]] = {trees: [], rows: []}
    for _ in range(rounds):
        gradients = {}
        for train, model in ((rows, plain), (trees, loaded.model)):
            started, busy = time.perf_counter(), time.process_time()
            for step in train():
                step()
            seconds[train].append(time.perf_counter() - started)
            worked[train].append(time.process_time() - busy)
            gradients[train] = gradient(model)
    difference = (gradients[rows] - gradients[trees]).norm() / gradients[rows].norm()
    lengths = [len(sample.timeline.token_ids) for sample in samples]
    sampled = sum(span.stop - span.start for sample in samples for span in sample.timeline.spans)
    flattened = sum(lengths)
    packed = sum(batch.tokens.numel() for batch in micro_batches(samples, trainer.micro_batch_tokens, CPU))
    shape, seen = Shape(path, plain.config), sum(length * (length + 1) / 2 for length in lengths)
    limit = shape.forward_flops(flattened, seen, sampled) / tree_flops(shape, samples, trainer.micro_batch_tokens)
    less = statistics.median(a / b for a, b in zip(worked[rows], worked[trees], strict=True))
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
        f"{limit:.2f}",
        f"{speedup / limit:.2f}",
        f"{less / limit:.2f}",
        f"{kept[rows] / 2**20:.0f}",
        f"{kept[trees] / 2**20:.0f}",
        f"{difference:.0e}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny", help="'tiny' or a folder with a Qwen3 model")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    columns = ["", "tokens in rows", "in trees", "R", "rows s", "trees s", "speed-up", "of R", "limit", "of limit"]
    columns += ["processor", "MiB, rows", "MiB, trees", "gradients differ by"]
    rows = [measure(options.model, "demo", demo_episodes(), options.rounds)]
    for groups, repeat, prompt, answer in SHAPES:
        samples = synthetic(groups, repeat, prompt, answer)
        rows.append(measure(options.model, f"{groups} x {repeat} ({prompt} + {answer})", samples, options.rounds))
    rows += [measure(options.model, name, samples, options.rounds) for name, samples in agents().items()]
    console = Console(width=160)
    console.print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, load average {os.getloadavg()[0]:.1f}"
    )
    console.print(table_of(f"forward and backward pass, medians of {options.rounds}", columns, rows))


if __name__ == "__main__":
    main()
