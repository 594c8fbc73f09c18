"""Does a training step fit into the memory of this machine? An estimate, with its arithmetic shown."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from astune.backbone.base import covers
from astune.context_tracker.model_dir import adapter_dir
from astune.doctor.checked_config import CheckedConfig, Missing
from astune.doctor.checks.context import longest_prompt
from astune.doctor.checks.packages import version_of
from astune.doctor.findings import Finding, fail, ok, skip, warn
from astune.doctor.memory_estimate import Extent, estimate
from astune.doctor.units import show_bytes

FIXES = {
    "cache": "lower astune.rollout.max_concurrent, or astune.model.max_model_len",
    "weights": "train an adapter (astune.model.lora.rank: 16), over weights in 4 bits (astune.model.lora.base: nf4)",
    "gradient": "train an adapter: set astune.model.lora.rank: 16",
    "Adam": "train an adapter: set astune.model.lora.rank: 16, or set astune.trainer.optimizer: adamw_8bit",
    "masks": "lower astune.trainer.micro_batch_tokens, or astune.model.max_model_len",
    "activations": "lower astune.trainer.micro_batch_tokens, or set astune.model.gradient_checkpointing: true",
}
"""What makes the largest part smaller."""
LIBRARIES = 400 * 2**20
"""What Python and torch take before there is a model."""


@dataclass(frozen=True)
class MachineMemory:
    """The memory that a machine has for a run: on a GPU if there is one that the configuration may use."""

    name: str
    total: int
    free: int
    is_cuda: bool


def check_memory(checked: CheckedConfig) -> Iterator[Finding]:
    if checked.config.backbone not in ("local", "debug"):
        yield skip(f"nothing is known of the memory that backbone {checked.config.backbone!r} takes")
        return
    memory = find_memory(checked.config.model.device)
    if memory is None:
        yield fail(
            f"the device is {checked.config.model.device!r}, but nvidia-smi shows no GPU on this machine",
            where=checked.where("astune.model.device"),
            fix="set it to 'auto' or 'cpu'; on the machine with the GPU, run the doctor there",
        )
        return
    parts = estimate(checked.size, checked.config, _extent(checked, memory.is_cuda))
    needed = sum(parts.values()) + LIBRARIES
    sum_of = " + ".join(f"{name} {show_bytes(size)}" for name, size in parts.items())
    said = f"about {show_bytes(needed)} of {show_bytes(memory.total)} ({memory.name}): {sum_of} + Python and torch"
    largest = max(parts, key=lambda name: parts[name])
    fix = next((fix for word, fix in FIXES.items() if word in largest), "take a smaller model, or a larger machine")
    if memory.is_cuda and (version_of("torch") or "").endswith("+cpu"):
        yield warn(
            f"this machine has a GPU ({memory.name}), and the installed torch {version_of('torch')} cannot use it",
            where=checked.where("astune.model.device"),
            fix="install torch for CUDA (pytorch.org says how), or set it to 'cpu'",
        )
    if needed > memory.total:
        yield fail(said, where=checked.where("astune.model.path"), fix=fix)
    elif needed > memory.free:
        yield warn(
            f"only {show_bytes(memory.free)} are free now, {said}",
            where=checked.where("astune.model.path"),
            fix=f"end what else runs there, or {fix}",
        )
    elif needed > 0.9 * memory.total:
        yield warn(f"{said}; that is tight", where=checked.where("astune.model.path"), fix=fix)
    else:
        yield ok(said)


def _extent(checked: CheckedConfig, is_cuda: bool) -> Extent:
    config = checked.config
    positions = _positions(checked)
    in_step = config.trainer.tasks_per_step * config.rollout.num_repeat * positions
    return Extent(
        reduced=config.model.dtype == "bfloat16" or (config.model.dtype == "auto" and is_cuda),
        trains=not covers(checked.backbone.ignored_sections, "astune.trainer"),
        positions=positions,
        tokens=min(config.trainer.micro_batch_tokens, in_step),
        begun=checked.begun or adapter_dir(config.model.path) is not None,
    )


def _positions(checked: CheckedConfig) -> int:
    """Most tokens of one conversation: the context, or less if the limits on turns and answers do not let it fill."""
    rollout = checked.config.rollout
    context = checked.config.model.max_model_len or checked.chat_format.context_length or 2**15
    try:
        prompt = longest_prompt(checked)[1]
    except Missing:
        return context
    return min(context, prompt + 2 * rollout.max_turns * rollout.max_tokens)


def find_memory(device: str) -> MachineMemory | None:
    """The memory of the GPU that `astune.model.device` means, else of the machine; None for a GPU that is not there."""
    gpus = [] if device == "cpu" else _gpus()
    index = int(device.partition(":")[2] or 0)
    if device.startswith("cuda") and index >= len(gpus):
        return None
    if gpus:
        return gpus[index]
    total = _ram()
    return MachineMemory("memory of this machine", total, min(total, _available()), False)


def _gpus() -> list[MachineMemory]:
    """The GPUs that `nvidia-smi` shows."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    asked = [program, "--query-gpu=memory.total,memory.free,name", "--format=csv,noheader,nounits"]
    answer = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=False)
    return read_gpus(answer.stdout) if answer.returncode == 0 else []


def read_gpus(lines: str) -> list[MachineMemory]:
    """GPUs from lines of total and free MiB and the name.

    >>> read_gpus("81559, 81007, NVIDIA H100 80GB HBM3")[0].name
    'NVIDIA H100 80GB HBM3'
    """
    rows = [line.split(", ", 2) for line in lines.splitlines()]
    return [
        MachineMemory(name, int(total) * 2**20, int(free) * 2**20, True)
        for total, free, name in (row for row in rows if len(row) == 3 and row[0].isdigit() and row[1].isdigit())
    ]


def _ram() -> int:
    """Bytes of memory, or what the container may use of it."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")]
    found = [int(text) for path in limits if path.is_file() and (text := path.read_text().strip()).isdigit()]
    return min([total, *found])


def _available() -> int:
    """Bytes that are not in use now, as Linux says; as much as there may be where nothing says so."""
    path = Path("/proc/meminfo")
    found = re.search(r"^MemAvailable:\s+(\d+) kB", path.read_text(), re.MULTILINE) if path.is_file() else None
    return int(found[1]) * 1024 if found else 2**63
