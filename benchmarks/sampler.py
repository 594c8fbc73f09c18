"""Tokens per second of the sampler beside `model.generate` of transformers, and where a decode step goes.

    .venv-bench/bin/python benchmarks/sampler.py
    .venv-bench/bin/python benchmarks/sampler.py --shared 8       # prompts in groups of 8 equal ones, as in training
    .venv/bin/python benchmarks/sampler.py --short                # both sizes and precisions in small
    .venv-bench/bin/python benchmarks/sampler.py --model 0.6B --prompt 32 --new 16 --rounds 2 --in-flight 1 16
    .venv-bench/bin/python benchmarks/sampler.py --continuous --vllm .venv-vllm/bin/python --dtype float32 bfloat16

The same model, prompts of 128 tokens, 64 new tokens each, temperature 1, prefill included. The two take turns; medians.
As in a run there is one sampler, which forgets its cache after each round; the first is warm-up on both sides.
`--model 83M` and `--model 0.6B` are Qwen3 with random weights. "bandwidth" is the share of what the cores read of
memory, measured by summing 256 MB on all of them, that a step reaches by its weights and the keys and values that it
reads: a small model's weights stay in the processor's cache, so the column is about large ones.
`--continuous` has transformers' continuous batching take turns too, and `--vllm PYTHON` vLLM, in the environment that
`make test-vllm` builds; each has a process of its own.
The sampler gives more than `generate` does (a seed and a log-probability per token, requests that
come and go), which is the part of a step called sampling and scheduling.
"""

from __future__ import annotations

from beside import Peer, started  # isort: skip  (before astune: as things were)
import astune.backbone.local  # noqa: F401  # isort: skip  (before torch: it says how torch's threads wait)

import argparse
import asyncio
import contextlib
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from bench_table import table_of
from floor import read_bandwidth
from gpu.shapes import model_folder
from rich.console import Console
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from astune.backbone.local.model.model import load_model
from astune.backbone.local.sampling.sampler import Sampler
from astune.config.schema import ModelConfig
from astune.context_tracker.model_dir import resolve_model_dir
from astune.types import Sampling

PROMPT, NEW = 128, 64
SHORT = 32, 16
"""The same for 83 million parameters."""
IN_FLIGHT = (1, 16, 64)


def folder_of(model: str) -> str:
    """Where the model is; one of random weights is made if need be, and stays for the next run."""
    return str(model_folder(model, torch.device("cpu"))) if model in ("83M", "0.6B") else model


def bytes_read(model: Any, in_flight: int, prompt: int, new: int) -> float:
    """By a step in the middle of the answers: weights once (a tied embedding is the head), keys and values of all."""
    shape = model.config
    width = torch.finfo(model.dtype).bits // 8
    cached = 2 * shape.num_hidden_layers * shape.num_key_value_heads * shape.head_dim * (prompt + new / 2)
    return float(width * (sum(each.numel() for each in model.parameters()) + in_flight * cached))


class TimedSampler(Sampler):
    """Adds up the seconds of its parts; each contains the one it calls."""

    def __init__(self, model: Any, **options: Any) -> None:
        super().__init__(model, **options)
        self.begin()

    def begin(self) -> None:
        self.seconds = dict.fromkeys(("prefill", "decode", "forward", "sampling"), 0.0)

    def _timed(self, part: str, function: Any, *arguments: Any) -> Any:
        started = time.perf_counter()
        result = function(*arguments)
        self.seconds[part] += time.perf_counter() - started
        return result

    def _admit(self) -> None:
        self._timed("prefill", super()._admit)

    def _decode(self) -> None:
        before = self.seconds["forward"]
        self._timed("decode", super()._decode)
        self.seconds["decode forward"] = self.seconds.get("decode forward", 0.0) + self.seconds["forward"] - before

    def _next_logits(self, *arguments: Any) -> Any:
        return self._timed("forward", super()._next_logits, *arguments)

    def _advance(self, *arguments: Any) -> None:
        self._timed("sampling", super()._advance, *arguments)


async def sample(sampler: TimedSampler, prompts: list[list[int]], new: int) -> float:
    """Seconds."""
    sampler.begin()
    started = time.perf_counter()
    requests = [sampler.generate(prompt, Sampling(new, seed=seed)) for seed, prompt in enumerate(prompts)]
    await asyncio.gather(*requests)
    seconds = time.perf_counter() - started
    sampler.publish()
    return seconds


def generate(model: Any, prompts: list[list[int]], new: int) -> float:
    ids = torch.tensor(prompts)
    started = time.perf_counter()
    model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        min_new_tokens=new,
        max_new_tokens=new,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        pad_token_id=0,
    )
    return time.perf_counter() - started


@dataclass(frozen=True)
class Load:
    """What a row of the table measures. `shared` requests have the same prompt."""

    model: str
    dtype: str
    in_flight: int
    prompt: int
    new: int
    rounds: int
    shared: int = 1
    peers: tuple[tuple[str, str], ...] = ()
    """Other engines: what `sampler_peer.py` calls it, and the Python that has it."""


def loads(options: argparse.Namespace) -> list[Load]:
    given = [options.model, options.dtype, options.prompt, options.new, options.rounds, options.shared]
    peers = [("continuous", sys.executable)] * options.continuous + [("vllm", options.vllm)] * bool(options.vllm)
    both = ["float32", "bfloat16"]
    sizes = [["tiny", both, PROMPT, NEW, 3, 1], ["83M", both, *SHORT, 3, 1]] if options.short else [given]
    return [
        Load(model, dtype, in_flight, prompt, new, rounds, shared, tuple(peers))
        for model, dtypes, prompt, new, rounds, shared in sizes
        for dtype in dtypes
        for in_flight in options.in_flight
    ]


def engine(name: str, python: str, path: str, load: Load) -> contextlib.AbstractContextManager[Peer]:
    size = {"slots": load.in_flight, "length": load.prompt + load.new, "shared": load.shared > 1}
    return started(python, "sampler_peer.py", {"engine": name, "model": path, "dtype": load.dtype, **size})


def ratio(theirs: Sequence[float], ours: Sequence[float]) -> str:
    return f"{statistics.median(b / a for a, b in zip(ours, theirs, strict=True)):.2f}"


def measure(path: str, load: Load, bandwidth: float) -> list[str]:
    """A row of the table."""
    in_flight, prompt, new, shared = load.in_flight, load.prompt, load.new, load.shared
    loaded = load_model(ModelConfig(path=path, device="cpu", dtype=load.dtype))
    plain = AutoModelForCausalLM.from_pretrained(resolve_model_dir(path), dtype=loaded.dtype).eval()
    chance = random.Random(0)
    distinct = [[chance.randrange(10, 1000) for _ in range(prompt)] for _ in range(max(in_flight // shared, 1))]
    prompts = [distinct[number // shared] for number in range(in_flight)]
    ours: list[float] = []
    theirs: list[float] = []
    served: dict[str, list[float]] = {name: [] for name, _ in load.peers}
    parts: dict[str, list[float]] = {}
    sampler = TimedSampler(loaded.sampling_model, slots=in_flight, context_length=loaded.context_length)
    with contextlib.ExitStack() as stack:
        peers = {
            name: stack.enter_context(engine(name, python, str(resolve_model_dir(path)), load))
            for name, python in load.peers
        }
        for number in range(load.rounds + 1):
            seconds, other = asyncio.run(sample(sampler, prompts, new)), generate(plain, prompts, new)
            found = {name: peer.ask(json.dumps({"prompts": prompts, "new": new})) for name, peer in peers.items()}
            if number:
                ours.append(seconds)
                theirs.append(other)
                for part, value in sampler.seconds.items():
                    parts.setdefault(part, []).append(value)
                for name, answer in found.items():
                    assert answer["tokens"] == in_flight * new, answer
                    served[name].append(answer["seconds"])
    middle = {part: statistics.median(values) for part, values in parts.items()}
    scheduling = middle["decode"] - middle["decode forward"] - middle["sampling"]
    tokens = in_flight * new
    share = bytes_read(loaded.sampling_model, in_flight, prompt, new) * new / middle["decode"] / bandwidth
    return [
        load.model,
        load.dtype,
        str(in_flight),
        f"{prompt} + {new}",
        f"{tokens / statistics.median(theirs):.0f}",
        f"{tokens / statistics.median(ours):.0f}",
        ratio(theirs, ours),
        *(cell for took in served.values() for cell in (f"{tokens / statistics.median(took):.0f}", ratio(took, ours))),
        f"{1e3 * middle['prefill']:.0f}",
        *(f"{1e3 * middle[part] / new:.2f}" for part in ("decode", "decode forward", "sampling")),
        f"{1e3 * scheduling / new:.2f}",
        f"{share:.2f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny", help="'tiny', '83M', '0.6B' or a folder")
    parser.add_argument("--dtype", nargs="+", default=["float32"], choices=["float32", "bfloat16"])
    parser.add_argument("--in-flight", type=int, nargs="+", default=list(IN_FLIGHT))
    parser.add_argument("--prompt", type=int, default=PROMPT)
    parser.add_argument("--new", type=int, default=NEW)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--shared", type=int, default=1, help="requests with the same prompt")
    parser.add_argument("--continuous", action="store_true", help="transformers' continuous batching too")
    parser.add_argument("--vllm", default="", help="the Python of an environment that has vLLM")
    parser.add_argument("--short", action="store_true", help="both sizes and precisions, few tokens, three rounds")
    options = parser.parse_args()
    logging.disable_progress_bar()
    console, bandwidth, rows, chosen = Console(width=180), read_bandwidth(), [], loads(options)
    for load in chosen:
        rows.append(measure(folder_of(load.model), load, bandwidth))
    title = "short, medians of 3" if options.short else f"medians of {options.rounds}"
    columns = ("model", "dtype", "in flight", "tokens", "generate tokens/s", "Sampler tokens/s", "ratio")
    columns += tuple(cell for name, _ in chosen[0].peers for cell in (f"{name} tokens/s", "ratio to it"))
    table = table_of(
        title, (*columns, "prefill ms", "step ms", "= forward", "+ sampling", "+ scheduling", "bandwidth"), rows, left=2
    )
    console.print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, load average {os.getloadavg()[0]:.1f}, "
        f"memory read at {bandwidth / 1e9:.1f} GB/s"
    )
    console.print(table)


if __name__ == "__main__":
    main()
