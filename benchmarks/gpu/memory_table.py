"""The doctor's estimate of memory beside the most that torch had allocated, and had reserved from the device.

A model samples one token behind a prompt, and takes two updates over a row of that length.
"""

from __future__ import annotations

from typing import Any

import torch
from gpu.job import Job, says_out_of_memory
from gpu.shapes import model_folder
from memory import DEFAULTS, measure, resident

from astune.errors import PolicyError, TrainingError

CASES: dict[str, tuple[str, dict[str, int]]] = {
    "0.6B, all weights, 2,048 tokens": ("0.6B", {"tokens": 2048}),
    "0.6B, recomputed, 16,384 tokens": ("0.6B", {"tokens": 16384, "recompute": 1}),
    "0.6B, all weights, 8,192 tokens": ("0.6B", {"tokens": 8192}),
    "0.6B, adapter, 8,192 tokens": ("0.6B", {"tokens": 8192, "rank": 16}),
    "4B, adapter, recomputed, 16,384 tokens": ("4B", {"tokens": 16384, "rank": 16, "recompute": 1}),
    "4B, all weights, recomputed, 4,096 tokens": ("4B", {"tokens": 4096, "recompute": 1}),
}
TINY: dict[str, tuple[str, dict[str, int]]] = {"tiny, all weights, 300 tokens": ("tiny", {"tokens": 300})}
GIB = 2**30


def run(job: Job) -> None:
    for name, (shape, case) in (TINY if job.tiny else CASES).items():
        folder = str(model_folder(shape, job.device))
        job.forget_memory()
        try:
            job.row("", {"case": name} | _measure(job, folder, DEFAULTS | case))
        except (PolicyError, TrainingError, RuntimeError) as error:
            if not says_out_of_memory(error):
                raise
            job.row("", {"case": name, "estimated GiB": "", "allocated GiB": "out of memory"})


def _measure(job: Job, folder: str, case: dict[str, int]) -> dict[str, Any]:
    if job.tiny:
        estimated, taken = measure(case, folder, resident)
        return {"estimated GiB": estimated / GIB, "taken GiB": taken / GIB}
    estimated, taken = measure(case, folder, torch.cuda.max_memory_allocated, device="cuda", dtype="bfloat16")
    reserved = torch.cuda.max_memory_reserved()
    row = {"estimated GiB": estimated / GIB, "allocated GiB": taken / GIB, "reserved GiB": reserved / GIB}
    return row | {"allocated / estimated": taken / estimated}
