"""Tokens sampled per second, beside `generate` of transformers, and the share of the memory's bandwidth that is used.

Prompts are random and all different. The first token of each answer is counted with the prompts, so decoding is what a
run with 65 tokens takes longer than one with a single token. A step of decoding has at least to read all weights and
the keys and values of every conversation; that over its time is the share of the peak. Whatever comes of the prompts
counts all products of the model and half of the square of attention.
"""

from __future__ import annotations

import asyncio
import gc
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from gpu.job import Job, says_out_of_memory
from gpu.machine import BANDWIDTH, MATRIX
from gpu.shapes import Shape, model_folder
from gpu.shapes import shape as shape_of
from transformers import AutoModelForCausalLM

from astune.backbone.local.model.model import load_model
from astune.backbone.local.sampling.kv_cache import GROWTH
from astune.backbone.local.sampling.sampler import Sampler
from astune.config.schema import ModelConfig
from astune.errors import PolicyError
from astune.types import Sampling

Answer = Callable[[list[list[int]], int], None]
"""Answers prompts with so many tokens each."""
IN_FLIGHT = {2048: (16, 1, 64, 256), 16384: (4, 1, 16)}
ROUNDS = {2048: 2, 16384: 1}
ROOM = 0.8
"""The share of the memory that caches may take with the weights; transformers' grows by copying."""


def run(job: Job, shape: str, prompt: int) -> None:
    name, numbers, new = ("tiny", (2, 1), 4) if job.tiny else (shape, IN_FLIGHT[prompt], 64)
    own: dict[int, float] = {}
    ways: dict[str, Callable[[Job, str], Answer]] = {"ASTune": _own, "generate": _generate}
    for who, make in ways.items():
        answer = make(job, name)
        for in_flight in numbers:
            prompts = _prompts(shape_of(name), in_flight, 32 if job.tiny else prompt)
            try:
                row = _measure(job, shape_of(name), answer, prompts, new, ROUNDS[prompt])
            except (PolicyError, RuntimeError) as error:
                if not says_out_of_memory(error):
                    raise
                row = {"tokens/s": "out of memory"}
            seconds = row.get("ms a step")
            own.setdefault(in_flight, seconds)
            ratio = {"times ASTune's": own[in_flight] / seconds} if seconds and own[in_flight] else {}
            job.row("", {"in flight": in_flight, "who": who} | row | ratio)
        del answer
        gc.collect()


def _prompts(made: Shape, count: int, length: int) -> list[list[int]]:
    chance = random.Random(count)
    return [[chance.randrange(5, made.config.vocab_size) for _ in range(length)] for _ in range(count)]


def _measure(job: Job, made: Shape, answer: Answer, prompts: list[list[int]], new: int, rounds: int) -> dict[str, Any]:
    """A row of the table."""
    in_flight, prompt = len(prompts), len(prompts[0])
    if not _fits(job, made, in_flight, prompt + new):
        return {"tokens/s": "does not fit"}
    job.forget_memory()
    answer(prompts, 2)  # warm-up
    first, whole = (
        statistics.median(_seconds(job, answer, prompts, number) for _ in range(rounds)) for number in (1, 1 + new)
    )
    step, peaks = (whole - first) / new, job.peaks()
    moved = made.decode_bytes(in_flight, prompt + new / 2, job.dtype)
    flops = in_flight * made.forward_flops(prompt, prompt**2 / 2, 1)
    return {
        "tokens/s": in_flight / step,
        "ms a step": 1e3 * step,
        "of the bandwidth": moved / step / 1e9 / peaks[BANDWIDTH],
        "prompt tokens/s": in_flight * prompt / first,
        "of the FLOP/s, prompts": flops / first / 1e12 / peaks[MATRIX],
        "most GiB": job.most_gib(),
    }


def _fits(job: Job, made: Shape, in_flight: int, tokens: int) -> bool:
    if job.device.type == "cpu":
        return True
    weights = (made.matrices + made.head) * (4 + job.dtype.itemsize)  # to train and to sample
    return weights + in_flight * (tokens + GROWTH) * made.cached(job.dtype) < ROOM * torch.cuda.mem_get_info()[1]


def _seconds(job: Job, answer: Answer, prompts: list[list[int]], new: int) -> float:
    job.finish()
    started = time.perf_counter()
    answer(prompts, new)
    job.finish()
    return time.perf_counter() - started


def load(job: Job, name: str, **more: Any) -> Any:
    """The `LoadedModel` of a run; `more` are keys of `astune.model`."""
    dtype: Any = str(job.dtype).removeprefix("torch.")
    folder = str(model_folder(name, job.device))
    return load_model(ModelConfig(path=folder, device=str(job.device), dtype=dtype, **more))


def _own(job: Job, name: str, **model: Any) -> Answer:
    loaded = load(job, name, **model)

    def answer(prompts: list[list[int]], new: int) -> None:
        sampler = Sampler(loaded.sampling_model, slots=len(prompts), context_length=loaded.context_length)

        async def together() -> None:
            calls = [sampler.generate(each, Sampling(new, seed=number)) for number, each in enumerate(prompts)]
            await asyncio.gather(*calls)

        asyncio.run(together())

    return answer


def _generate(job: Job, name: str) -> Answer:
    folder = model_folder(name, job.device)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=job.dtype).to(job.device).eval()
    options = {"do_sample": True, "temperature": 1.0, "top_k": 0, "pad_token_id": 0}

    def answer(prompts: list[list[int]], new: int) -> None:
        ids = torch.tensor(prompts, device=job.device)
        mask = torch.ones_like(ids)
        model.generate(ids, attention_mask=mask, min_new_tokens=new, max_new_tokens=new, **options)

    return answer
