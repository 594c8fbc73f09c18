"""Does a training step fit into the memory of this machine? An estimate, with its arithmetic shown."""

from __future__ import annotations

from collections.abc import Iterator

from astune.backbone.base import covers
from astune.backbone.foreign.keys import place_of
from astune.backbone.verl.memory import VerlMemory
from astune.backbone.verl.memory import estimate as estimate_verl
from astune.backbone.verl.trainer.settings import settings_of
from astune.context_tracker.model_dir import adapter_dir
from astune.doctor.checked_config import CheckedConfig, Missing
from astune.doctor.checks.context import longest_prompt
from astune.doctor.checks.packages import version_of
from astune.doctor.findings import Finding, fail, ok, skip, warn
from astune.doctor.memory_estimate import Extent, GpuOfRun, estimate
from astune.support import machine_memory
from astune.support.machine_memory import MachineMemory, is_of_amd, show_bytes

FIXES = {
    "vLLM": "lower astune.rollout.vllm.gpu_memory_utilization, or name other GPUs in astune.rollout.vllm.gpus",
    "cache": "lower astune.rollout.max_concurrent, or astune.model.max_model_len",
    "weights": "train an adapter (astune.model.lora.rank: 16), over weights in 4 bits (astune.model.lora.base: nf4)",
    "gradient": "train an adapter: set astune.model.lora.rank: 16",
    "Adam": "train an adapter: set astune.model.lora.rank: 16, or set astune.trainer.optimizer: adamw_8bit",
    "masks": "lower astune.trainer.micro_batch_tokens, or astune.model.max_model_len",
    "activations": "lower astune.trainer.micro_batch_tokens, or set astune.model.gradient_checkpointing: true",
}
"""Advice that makes the largest part smaller."""
LIBRARIES = 400 * 2**20
"""Bytes that Python and torch take before there is a model."""


def check_memory(checked: CheckedConfig) -> Iterator[Finding]:
    if checked.config.backbone == "verl":
        yield from _of_verl(checked)
        return
    if checked.config.backbone not in ("local", "debug"):
        yield skip(f"nothing is known of the memory that backbone {checked.config.backbone!r} takes")
        return
    memory = machine_memory.find_memory(checked.config.model.device)
    if memory is None:
        yield fail(
            f"the device is {checked.config.model.device!r}, but nvidia-smi shows no GPU on this machine",
            where=checked.where("astune.model.device"),
            fix="set it to 'auto' or 'cpu'; on the machine with the GPU, run the doctor there",
        )
        return
    parts = estimate(checked.size, checked.config, _extent(checked, memory), checked.sizes)
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


def _of_verl(checked: CheckedConfig) -> Iterator[Finding]:
    """By role; against the GPUs of this machine if it has any, else it says how large they have to be."""
    config, settings = checked.config, settings_of(checked.loaded).tree
    length = config.model.max_model_len or checked.chat_format.context_length or 2**15
    memory = estimate_verl(checked.size, settings, config, length)
    if settings["trainer"]["device"] == "cpu":
        yield from _on_cpu(checked, memory)
        return
    smallest = min((gpu.total for gpu in machine_memory.gpus()), default=None)
    for line in memory.table(smallest):
        yield ok(" ".join(line.split()))
    for lack in memory.lacks(smallest) if smallest is not None else ():
        yield fail(lack.what, where=_at(checked, lack.key), fix=lack.remedy)


def _at(checked: CheckedConfig, key: str) -> str:
    """The place of a key, of verl's section too."""
    if key.startswith("astune."):
        return checked.where(key)
    known = any(origin == key or origin.startswith(f"{key}.") for origin in checked.loaded.origins)
    return f"{place_of(checked.loaded, key) if known else checked.conf}: {key}"


def _on_cpu(checked: CheckedConfig, memory: VerlMemory) -> Iterator[Finding]:
    parts, machine = memory.on_cpu(), machine_memory.of_the_machine()
    needed = sum(parts.values())
    sum_of = " + ".join(f"{name} {show_bytes(size)}" for name, size in parts.items())
    said = f"about {show_bytes(needed)} of {show_bytes(machine.total)} ({machine.name}): {sum_of}"
    fix = "lower verl.trainer.n_gpus_per_node, astune.trainer.micro_batch_tokens or astune.rollout.max_concurrent"
    if needed > machine.total:
        yield fail(said, where=checked.where("astune.model.path"), fix=fix)
    elif needed > machine.free:
        said = f"only {show_bytes(machine.free)} are free now, {said}"
        yield warn(said, where=checked.where("astune.model.path"), fix=fix)
    else:
        yield ok(said)


def _extent(checked: CheckedConfig, memory: MachineMemory) -> Extent:
    config = checked.config
    positions = _positions(checked)
    in_step = config.trainer.tasks_per_step * config.rollout.num_repeat * positions
    return Extent(
        reduced=config.model.dtype == "bfloat16" or (config.model.dtype == "auto" and memory.is_cuda),
        trains=not covers(checked.backbone.ignored_sections, "astune.trainer"),
        positions=positions,
        tokens=min(config.trainer.micro_batch_tokens, in_step),
        laid_out=not memory.is_cuda and is_of_amd(),
        begun=checked.begun or adapter_dir(config.model.path) is not None,
        gpu=GpuOfRun(int(config.model.device.partition(":")[2] or 0), memory.total) if memory.is_cuda else None,
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
