"""What a machine has, and how fast it copies and multiplies: what shares of the peak are shares of."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import time
from collections.abc import Callable
from functools import partial
from importlib import metadata

import torch
from gpu.job import CheckFailed, Job

from scripts.gpu_wheels import installed, unmet, wanted

NAMED = ("torch", "triton", "transformers", "agentscope", "peft", "numpy", "pytest")
BANDWIDTH, MATRIX = "copied, GB/s read and written", "matrix product, TFLOP/s"
"""Names of the facts that shares are computed from; the product is in the precision that parts compute in."""
REPEATS = 10


def run(job: Job) -> None:
    job.fact("Python", platform.python_version())
    job.fact("CPU cores", os.cpu_count())
    for name in NAMED:
        package = installed(name)
        job.fact(name, package.version if package else "not there")
    if job.device.type == "cuda":
        _gpu(job)
    _peaks(job)
    faults = unmet(wanted(), installed)
    missing = [fault for fault in faults if " is missing, which " in fault]
    job.fact("packages that are missing", "; ".join(missing) or "none")
    job.fact("in another version than asked for", "; ".join(set(faults) - set(missing)) or "none")
    job.fact("distributions", len(list(metadata.distributions())))
    if missing:
        raise CheckFailed("make gpu-wheels, where there is an index, brings them: " + "; ".join(missing))


def _gpu(job: Job) -> None:
    about = torch.cuda.get_device_properties(0)
    job.fact("GPU", about.name)
    job.fact("memory, GiB", about.total_memory / 2**30)
    job.fact("compute capability", f"{about.major}.{about.minor}")
    job.fact("multiprocessors", about.multi_processor_count)
    job.fact("CUDA of torch", torch.version.cuda)
    if shutil.which("nvidia-smi"):
        asked = ["nvidia-smi", "--query-gpu=driver_version,clocks.sm,clocks.mem", "--format=csv,noheader"]
        job.fact("driver and clocks", subprocess.run(asked, capture_output=True, text=True).stdout.strip())


def _peaks(job: Job) -> None:
    numbers, width = (2**20, 256) if job.tiny else (2**30, 8192)
    source = torch.ones(numbers, device=job.device)
    target = torch.empty_like(source)
    job.fact(BANDWIDTH, 2 * numbers * 4 / timed(job, partial(target.copy_, source)) / 1e9)
    for dtype in {job.dtype, torch.float32}:
        a, b = (torch.randn(width, width, device=job.device, dtype=dtype) for _ in range(2))
        rate = 2 * width**3 / timed(job, partial(torch.matmul, a, b)) / 1e12
        job.fact(MATRIX if dtype == job.dtype else "matrix product in float32, TFLOP/s", rate)
    small = torch.zeros(1, device=job.device)
    job.fact("a kernel of one number, microseconds", 1e6 * timed(job, lambda: small.add_(1), repeats=1000))


def timed(job: Job, work: Callable[[], object], *, repeats: int = REPEATS) -> float:
    """Seconds of one call, after three to warm up."""
    for _ in range(3):
        work()
    job.finish()
    started = time.perf_counter()
    for _ in range(repeats):
        work()
    job.finish()
    return (time.perf_counter() - started) / repeats
