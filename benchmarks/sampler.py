"""Tokens per second of the sampler beside `model.generate` of transformers, and where a decode step goes.

    .venv-bench/bin/python benchmarks/sampler.py
    .venv-bench/bin/python benchmarks/sampler.py --shared 8       # prompts in groups of 8 equal ones, as in training

The same model, prompts of 128 tokens, 64 new tokens each, temperature 1, float32, prefill included. The two take
turns; medians. The sampler gives more than `generate` does (a seed and a log-probability per token, requests that
come and go), which is the part of a step called sampling and scheduling.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as ASTune's local backbone sets it; torch reads it when imported

import argparse
import asyncio
import random
import statistics
import time
from typing import Any

import torch
from bench_table import table_of
from rich.console import Console
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from astune.backbone.local.model.model import load_model
from astune.backbone.local.sampling.sampler import Sampler
from astune.config.schema import ModelConfig
from astune.context_tracker.model_dir import resolve_model_dir
from astune.types import Sampling

PROMPT, NEW = 128, 64
IN_FLIGHT = (1, 16, 64)


class TimedSampler(Sampler):
    """Adds up the seconds of its parts; each contains the one it calls."""

    def __init__(self, model: Any, **options: Any) -> None:
        super().__init__(model, **options)
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


async def sample(sampler: Sampler, prompts: list[list[int]]) -> float:
    """Seconds."""
    started = time.perf_counter()
    requests = [sampler.generate(prompt, Sampling(NEW, seed=seed)) for seed, prompt in enumerate(prompts)]
    await asyncio.gather(*requests)
    seconds = time.perf_counter() - started
    sampler.publish()
    return seconds


def generate(model: Any, prompts: list[list[int]]) -> float:
    ids = torch.tensor(prompts)
    started = time.perf_counter()
    model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        min_new_tokens=NEW,
        max_new_tokens=NEW,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        pad_token_id=0,
    )
    return time.perf_counter() - started


def measure(path: str, in_flight: int, shared: int, rounds: int) -> list[str]:
    """A row of the table."""
    loaded = load_model(ModelConfig(path=path, device="cpu"))
    plain = AutoModelForCausalLM.from_pretrained(resolve_model_dir(path), dtype=torch.float32).eval()
    chance = random.Random(0)
    distinct = [[chance.randrange(10, 1000) for _ in range(PROMPT)] for _ in range(max(in_flight // shared, 1))]
    prompts = [distinct[number // shared] for number in range(in_flight)]
    ours: list[float] = []
    theirs: list[float] = []
    parts: dict[str, list[float]] = {}
    for number in range(rounds + 1):
        sampler = TimedSampler(loaded.sampling_model, slots=in_flight, context_length=loaded.context_length)
        seconds, other = asyncio.run(sample(sampler, prompts)), generate(plain, prompts)
        if number:  # the first is warm-up
            ours.append(seconds)
            theirs.append(other)
            for part, value in sampler.seconds.items():
                parts.setdefault(part, []).append(value)
    middle = {part: statistics.median(values) for part, values in parts.items()}
    scheduling = middle["decode"] - middle["decode forward"] - middle["sampling"]
    tokens = in_flight * NEW
    return [
        str(in_flight),
        f"{tokens / statistics.median(theirs):.0f}",
        f"{tokens / statistics.median(ours):.0f}",
        f"{statistics.median(b / a for a, b in zip(ours, theirs, strict=True)):.2f}",
        f"{1e3 * middle['prefill']:.0f}",
        *(f"{1e3 * middle[part] / NEW:.2f}" for part in ("decode", "decode forward", "sampling")),
        f"{1e3 * scheduling / NEW:.2f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny", help="'tiny' or a folder")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--shared", type=int, default=1, help="requests with the same prompt")
    options = parser.parse_args()
    logging.disable_progress_bar()
    columns = ("in flight", "generate tokens/s", "Sampler tokens/s", "ratio", "prefill ms")
    rows = [measure(options.model, in_flight, options.shared, options.rounds) for in_flight in IN_FLIGHT]
    title = f"prompt {PROMPT}, {NEW} new tokens, medians of {options.rounds}"
    table = table_of(title, (*columns, "step ms", "= forward", "+ sampling", "+ scheduling"), rows, left=0)
    console = Console(width=140)
    console.print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, load average {os.getloadavg()[0]:.1f}"
    )
    console.print(table)


if __name__ == "__main__":
    main()
