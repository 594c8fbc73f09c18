"""One step of sampling and one micro-batch of training, kernel by kernel: what a step spends on launching, and where it
waits for the device."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from gpu.job import Job
from gpu.machine import timed
from gpu.sampling import load
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from training_step import synthetic

from astune.backbone.local.learning.batch import micro_batches
from astune.backbone.local.learning.learner import LocalLearner
from astune.backbone.local.sampling.draw import draw
from astune.backbone.local.sampling.kv_cache import KVCache
from astune.backbone.local.sampling.sampler import Sampler
from astune.config.schema import AlgorithmConfig, TrainerConfig

LAUNCHES = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx", "cudaGraphLaunch")
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpyAsync", "cudaMemcpy")
NAMED, REPEATS = 15, 5


def decode(job: Job) -> None:
    """16 conversations of 2,048 tokens, one token for each; what draws it is in it."""
    rows, prompt = (2, 32) if job.tiny else (16, 2048)
    loaded = load(job, "tiny" if job.tiny else "0.6B")
    model, vocabulary = loaded.sampling_model, loaded.model.config.vocab_size
    cache, chance = KVCache(rows, job.dtype, job.device), random.Random(0)
    texts = [[chance.randrange(5, vocabulary) for _ in range(prompt)] for _ in range(rows)]
    pending = dict.fromkeys(range(rows), 7)

    def step() -> None:
        logits = cache.step(model, pending)
        ids, logprobs = draw(logits, [1.0] * rows, [1.0] * rows, [0] * rows, [chance.random() for _ in range(rows)])
        cache.append_each(list(pending), list(pending.values()))
        pending.update(enumerate(ids.tolist()))
        logprobs.tolist()

    with torch.inference_mode():
        cache.extend(model, range(rows), [torch.tensor(text).numpy() for text in texts])
        _profile(job, step)
        _as_graph(job, cache, model, rows)


def _as_graph(job: Job, cache: KVCache, model: Any, rows: int) -> None:
    """The forward pass of such a step, launched kernel by kernel, and all at once as a CUDA graph: what graphs have to
    gain. Here all lengths stand still, which they do not in a run."""
    layout, tokens = cache._make_layout(list(range(rows)), 1, rows), torch.full((rows, 1), 7, device=job.device)
    decoder = cache._get_decoder(model)
    assert decoder is not None, "Qwen3 is a usual decoder"

    def forward() -> None:
        decoder.forward(tokens, layout.positions, layout)

    job.fact("the forward pass, ms", 1e3 * timed(job, forward))
    if job.device.type != "cuda":
        return
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):  # `timed` was its warm-up
            forward()
    except RuntimeError as error:
        job.fact("no CUDA graph of it", str(error).splitlines()[0])
    else:
        job.fact("the forward pass as a CUDA graph, ms", 1e3 * timed(job, graph.replay))


def train(job: Job) -> None:
    """Forward and backward pass over 8 attempts of 256 tokens at one task of 2,048."""
    prompt, answer = (32, 8) if job.tiny else (2048, 256)
    loaded = load(job, "tiny" if job.tiny else "0.6B")
    sampler = Sampler(loaded.sampling_model, slots=1, context_length=loaded.context_length)
    learner = LocalLearner(loaded, sampler, AlgorithmConfig(loss="reinforce"), TrainerConfig())
    (batch,) = micro_batches(synthetic(1, 8, prompt, answer), 100_000, job.device)
    _profile(job, lambda: learner._backward(batch, True, None))


def _profile(job: Job, work: Callable[[], Any]) -> None:
    """The times of one call. `wall` is without the profiler."""
    wall = timed(job, work, repeats=REPEATS)
    job.fact("wall, ms", 1e3 * wall)
    on_gpu = job.device.type == "cuda"
    with profile(activities=[ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * on_gpu) as profiled:
        for _ in range(REPEATS):
            work()
        job.finish()
    events = profiled.key_averages()
    if on_gpu:
        _launches(job, events, wall)
    kernels = [event for event in events if (event.device_type == DeviceType.CUDA) == on_gpu]
    cost = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    whole = sum(getattr(event, cost) for event in kernels)
    for event in sorted(kernels, key=lambda event: -getattr(event, cost))[:NAMED]:
        row = {"kernel" if on_gpu else "operation": event.key[:90], "calls": event.count / REPEATS}
        row |= {"ms": getattr(event, cost) / REPEATS / 1e3, "share": getattr(event, cost) / whole}
        job.row("what takes the device's time", row)


def _launches(job: Job, events: Any, wall: float) -> None:
    busy = sum(event.self_device_time_total for event in events if event.device_type == DeviceType.CUDA) / REPEATS / 1e6
    launches = [event for event in events if event.key in LAUNCHES]
    spent = sum(event.self_cpu_time_total for event in launches) / REPEATS / 1e6
    job.fact("the device computes, ms", 1e3 * busy)
    job.fact("the device computes, share of the wall", busy / wall)
    job.fact("kernels launched", sum(event.count for event in launches) / REPEATS)
    job.fact("launching, ms", 1e3 * spent)
    job.fact("launching, share of the wall", spent / wall)
    for event in events:
        if event.key in WAITS:
            row = {"waiting or copying": event.key, "calls": event.count / REPEATS}
            job.row("what the host asks of the driver", row | {"ms": event.self_cpu_time_total / REPEATS / 1e3})
