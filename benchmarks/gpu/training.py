"""Tokens trained per second: a whole update, beside a plain loop of transformers and AdamW over padded rows.

"a x b (p + n)" are a groups of b attempts with p tokens of prompt, which they share, and n of answer. Tokens per second
are those of the rows, on both sides: ASTune computes what rows share once. The share of the peak counts what ASTune
really computed, forward and backward, each product once: what is computed again to save memory does not count.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from gpu.job import Job, says_out_of_memory
from gpu.machine import MATRIX
from gpu.sampling import load
from gpu.shapes import model_folder, tree_flops
from gpu.shapes import shape as shape_of
from training_step import padded_batches, synthetic, train_padded
from transformers import AutoModelForCausalLM

from astune.backbone.local.learning.batch import micro_batches
from astune.backbone.local.learning.learner import LocalLearner
from astune.backbone.local.sampling.sampler import Sampler
from astune.config.schema import AlgorithmConfig, TrainerConfig
from astune.errors import TrainingError
from astune.types import Sample

Train = Callable[[list[Sample]], None]
"""Takes an update over samples."""
SHAPES = {2048: ((2, 8, 2048, 256), (16, 1, 2048, 256)), 16384: ((1, 4, 16384, 512), (2, 1, 16384, 512))}
MICRO_BATCH = {2048: 9216, 16384: 18_944}
RECOMPUTED = "4B"
"""Without it the activations of 19,000 tokens would not fit."""
ROUNDS, RATE = 2, 1e-6


def run(job: Job, shape: str, prompt: int) -> None:
    name, numbers = ("tiny", ((1, 4, 32, 8),)) if job.tiny else (shape, SHAPES[prompt])
    most = 128 if job.tiny else MICRO_BATCH[prompt]
    own: dict[Any, float] = {}
    ways: dict[str, Callable[[Job, str, int, Any], Train]] = {"ASTune": _own, "ASTune, adamw_fused": _own}
    ways |= {"a plain loop": _plain}
    ways |= {"ASTune, with masks": partial(_own, attention="sdpa")} if job.device.type == "cuda" else {}
    for who, make in ways.items():
        job.forget_memory()
        train = make(job, name, most, "adamw_fused" if "fused" in who else "adamw")
        for each in numbers:
            samples = synthetic(*each)
            named = {"rows": "{} x {} ({} + {})".format(*each), "who": who}
            try:
                seconds = _seconds(job, train, samples)
            except (TrainingError, RuntimeError) as error:
                if not says_out_of_memory(error):
                    raise
                job.row("", named | {"tokens/s": "out of memory"})
                continue
            own.setdefault(each, seconds)
            rows = sum(len(sample.timeline.token_ids) for sample in samples)
            packed = sum(batch.tokens.numel() for batch in micro_batches(samples, most, torch.device("cpu")))
            row: dict[str, Any] = named | {"tokens/s": rows / seconds}
            row |= {
                "s": seconds,
                "times ASTune's": own[each] / seconds if each in own else "",
                "R": rows / packed,
                "most GiB": job.most_gib(),
            }
            if who.startswith("ASTune"):
                done = 3 * tree_flops(shape_of(name), samples, most)
                row["of the FLOP/s"] = done / seconds / 1e12 / job.peaks()[MATRIX]
            job.row("", row)
        del train
        gc.collect()


def _seconds(job: Job, train: Train, samples: list[Sample]) -> float:
    """Of an update; the first is warm-up."""
    found = []
    for _ in range(ROUNDS + 1):
        job.finish()
        started = time.perf_counter()
        train(samples)
        job.finish()
        found.append(time.perf_counter() - started)
    return statistics.median(found[1:])


def _own(job: Job, name: str, most: int, optimizer: Any, **model: Any) -> Train:
    loaded = load(job, name, gradient_checkpointing=name == RECOMPUTED, **model)
    sampler = Sampler(loaded.sampling_model, slots=1, context_length=loaded.context_length)
    trainer = TrainerConfig(micro_batch_tokens=most, optimizer=optimizer)
    learner = LocalLearner(loaded, sampler, AlgorithmConfig(loss="reinforce"), trainer)

    async def update(samples: list[Sample]) -> None:
        await learner.update(samples, RATE)

    return lambda samples: asyncio.run(update(samples))


def _plain(job: Job, name: str, most: int, optimizer: Any) -> Train:
    model = AutoModelForCausalLM.from_pretrained(model_folder(name, job.device), dtype=torch.float32).to(job.device)
    if name == RECOMPUTED:
        model.gradient_checkpointing_enable()
    model.train()
    adamw = torch.optim.AdamW(model.parameters(), lr=RATE)

    def train(samples: list[Sample]) -> None:
        for batch in padded_batches(samples, most):
            with nullcontext() if job.dtype == torch.float32 else torch.autocast(job.device.type, job.dtype):
                train_padded(model, batch)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adamw.step()
        adamw.zero_grad(set_to_none=True)

    return train
