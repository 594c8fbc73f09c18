"""The memory that sampling and training take, by arithmetic.

N numbers in all weights, A in the adapters, b bytes of a number in sampling (2 in bfloat16, 4 in float32), L layers, h
hidden size, i feed-forward size, H heads, K key-value heads, d head size, V tokens in the vocabulary, S conversations
at a time, P tokens of the longest, T tokens of a micro-batch, a = b (20 h + 5 i):

| what | all weights are trained | an adapter is trained |
| --- | --- | --- |
| weights | 4 N | b N; in 4 bits 0.5625 for each number of the layers, b for each of embedding and head |
| the sampler's copy | b N where b is not 4, or rollouts are ahead (`synchronizer.style: async`) | none, 4 A |
| on a processor of AMD weights laid out for oneDNN, and its programs | b N, 96 MiB | none |
| adapters | none | 4 A |
| gradient | 4 N | 4 A |
| averages of AdamW | 8 N, in 8 bits 2 N | 8 A, 2 A |
| the reference, if the loss has one | b N | none, as it is the base; 4 A where training begins with an adapter |
| the critic, if there is one | 16 N, with averages in 8 bits 10 N | the same |
| key-value cache | 2 L K d b S (P + 256) | the same |
| logits | 4 numbers of 4 bytes for each of min(T V, 2**26) | the same |
| activations | T L a, or T L b h if they are recomputed | the same, a + 4 (5 h + H d + i) for a if b is 2 |
| the layer that is recomputed | T a | the same |
| masks, but for flash attention on a GPU | T min(P, T) / 2 (b H / K + 1) | the same |

With `rollout.engine: vllm` there are no copy and no cache of the sampler's, but a server: b N and its cache beside all
that on a CPU; on the same GPU, while agents play, `vllm.gpu_memory_utilization` of it in place of what an update makes.

20 h + 5 i was counted on small models: `tests/doctor/test_memory_estimate.py` compares it with what torch keeps,
`benchmarks/memory.py` the whole with what a process takes. Experts, states of linear attention and what the allocator
loses are not in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from astune.backbone.memory.model_size import ModelSize, adapter_numbers, layer_bytes
from astune.backbone.vllm.settings import BESIDE_TRAINER
from astune.config.rules.method import rules_of
from astune.config.rules.models import config_of, configs_of_trained, places_of, split_by_base
from astune.config.schema import AstuneConfig
from astune.support.machine_memory import show_count

CACHE_GROWTH = 256
"""Positions by which the sampler's cache grows beyond what it needs (`backbone/local/sampling/kv_cache.py`, which needs
torch; a test keeps the two equal)."""
LOGITS_AT_ONCE = 2**26
"""Logits in a chunk (`astune.backbone.local.learning.forward`, likewise)."""
LOGIT_COPIES = 4
"""Logits in float32, their log-softmax, and the gradients of both."""
PROGRAMS = 64
"""Programs that oneDNN keeps (`astune.backbone.local.process`, likewise)."""
FOUR_BITS = 0.5625
"""Bytes of a number in 4 bits: half of one, and a float32 for each 64."""
AVERAGES = {"adamw": 8, "adamw_fused": 8, "adamw_8bit": 2}
"""Bytes of the optimizer for each trained number."""


STANDING = ("weights", "adapters", "Adam", "the reference", "the critic")
"""Parts that stay in memory between two updates, by the beginnings of their names."""
CPU_CACHE_GIB = 1
"""A vLLM server's on a CPU, unless VLLM_CPU_KVCACHE_SPACE says otherwise."""


@dataclass(frozen=True)
class GpuOfRun:
    """The GPU that trains: its number, and its bytes."""

    index: int
    total: float


@dataclass(frozen=True)
class Extent:
    """`reduced`: sampling is in bfloat16. `trains`: there is a learner. `positions` of the longest conversation,
    `tokens` of a micro-batch. `begun`: training begins with an adapter that was trained before. `laid_out`: on a CPU
    for which the sampler lays weights out. `frozen`: beside models that are trained, and only as it is sampled. `gpu`
    is the one that trains, None for a CPU."""

    reduced: bool
    trains: bool
    positions: int
    tokens: int
    begun: bool = False
    laid_out: bool = False
    frozen: bool = False
    gpu: GpuOfRun | None = None

    @property
    def number(self) -> int:
        return 2 if self.reduced else 4


UPDATES = ("gradient", "logits", "activations", "attention")
"""Parts that are there while one model is updated, by the beginnings of their names."""


def estimate(
    size: ModelSize, config: AstuneConfig, extent: Extent, sizes: Mapping[str, ModelSize] | None = None
) -> Mapping[str, float]:
    """Bytes by what they are for, at the fullest moment of a step. Sampling and learning take turns but both keep what
    they have. Of several models each base has its own, whose size is by its path in `sizes` if it is not that of
    `astune.model`; updates come one after the other."""
    if not config.models:
        return _estimate_one(size, config, extent)
    standing: dict[str, float] = {}
    updates: list[dict[str, float]] = []
    for names, own in split_by_base(config).items():
        frozen = not any(config.models[name].learns for name in names)
        one = replace(extent, trains=extent.trains and not frozen, frozen=frozen)
        parts = _estimate_one((sizes or {}).get(own.model.path, size), own, one)
        parts = {f"{what} of {', '.join(names)}": part for what, part in parts.items()}
        standing |= {what: part for what, part in parts.items() if not what.startswith(UPDATES)}
        updates.append({what: part for what, part in parts.items() if what.startswith(UPDATES)})
    return standing | max(updates, key=lambda each: sum(each.values()))


def _estimate_one(size: ModelSize, config: AstuneConfig, extent: Extent) -> Mapping[str, float]:
    parts = _weights(size, config, extent)
    if extent.trains and config.rollout.engine == "vllm":
        return _with_server(parts | _training(size, config, extent), size, config, extent)
    slots, positions = config.rollout.max_concurrent, extent.positions + CACHE_GROWTH
    per_position = 2 * size.layers * size.kv_heads * size.head_dim * extent.number
    parts[f"key-value cache ({slots} x {positions} positions x {per_position:,} bytes)"] = float(
        slots * positions * per_position
    )
    if not extent.trains:
        return parts
    parts |= (_training_of_several if config.models else _training)(size, config, extent)
    adapters = sum(part for name, part in parts.items() if name.startswith("adapters"))
    if adapters and config.synchronizer.style == "async":
        parts["the sampler's copy of the adapters (x 4)"] = adapters
    return parts


def _with_server(
    parts: Mapping[str, float], size: ModelSize, config: AstuneConfig, extent: Extent
) -> Mapping[str, float]:
    """The parts with those of a vLLM server, where it is on the same machine or GPU."""
    vllm = config.rollout.vllm
    if vllm.base_url is not None:
        return parts
    if extent.gpu is None:
        told = f"vLLM's server ({show_count(size.parameters)} x {extent.number} bytes, cache of {CPU_CACHE_GIB} GiB)"
        return {**parts, told: float(extent.number * size.parameters + CPU_CACHE_GIB * 2**30)}
    if vllm.gpus and extent.gpu.index not in vllm.gpus:
        return parts
    share = vllm.gpu_memory_utilization or BESIDE_TRAINER
    playing = {name: part for name, part in parts.items() if name.startswith(STANDING)}
    playing[f"vLLM's server while agents play ({share:g} of the GPU)"] = share * extent.gpu.total
    return max(parts, playing, key=lambda moment: sum(moment.values()))


def _weights(size: ModelSize, config: AstuneConfig, extent: Extent) -> dict[str, float]:
    count, short, number = size.parameters, show_count(size.parameters), extent.number
    if extent.frozen and config.model.lora.base == "dtype":
        return {f"weights ({short} x {number} bytes)": float(number * count)}
    if config.model.lora.rank is None or not (extent.trains or extent.frozen):
        parts = {f"weights ({short} x 4 bytes)": 4.0 * count}
        copied = extent.reduced or (extent.trains and config.synchronizer.style == "async")
        copied = copied and not (extent.trains and config.rollout.engine == "vllm")
        if copied:
            parts[f"the sampler's copy (x {number})"] = float(number * count)
        if extent.laid_out and config.model.lora.rank is None and config.rollout.engine != "vllm":
            parts[f"weights laid out for the processor (x {number})"] = float(number * count)
            parts[f"products' programs ({PROGRAMS} x 1.5 MiB)"] = PROGRAMS * 1.5 * 2**20
        return parts
    if config.model.lora.base == "dtype":
        return {f"weights ({short} x {number} bytes)": float(number * count)}
    wide = min(count, size.vocabulary * size.hidden * (1 if size.tied else 2))
    return {f"weights ({short}, layers in 4 bits)": FOUR_BITS * (count - wide) + number * wide}


def _training_of_several(size: ModelSize, config: AstuneConfig, extent: Extent) -> dict[str, float]:
    """The parts of several models: the adapter of each, the optimizers of those that are trained, and what the largest
    of their updates takes, as they come one after the other."""
    owns = {name: config_of(config, name) for name in config.models}
    numbers = {
        name: len(places_of(config)[name]) * adapter_numbers(size, own.model.lora.rank or 0, own.model.lora.targets)
        for name, own in owns.items()
    }
    updates, optimizers = [], 0.0
    for name in configs_of_trained(config):
        alone = _training(size, owns[name].model_copy(update={"models": {}}), extent)
        optimizers += sum(part for what, part in alone.items() if what.startswith("Adam"))
        updates.append({what: part for what, part in alone.items() if not what.startswith(("adapters", "Adam"))})
    parts = {f"adapters ({show_count(sum(numbers.values()))} x 4 bytes)": 4.0 * sum(numbers.values())}
    return {**parts, f"Adam, of {len(updates)} models": optimizers} | max(updates, key=lambda each: sum(each.values()))


def count_trained(size: ModelSize, config: AstuneConfig) -> int:
    """Count the numbers that are trained: of the adapter, if there is one, else of all weights."""
    lora = config.model.lora
    return size.parameters if lora.rank is None else adapter_numbers(size, lora.rank, lora.targets)


def _training(size: ModelSize, config: AstuneConfig, extent: Extent) -> dict[str, float]:
    lora, averages, tokens = config.model.lora, AVERAGES[config.trainer.optimizer], extent.tokens
    trained = count_trained(size, config)
    parts: dict[str, float] = {}
    if lora.rank is not None:
        parts[f"adapters ({show_count(trained)} x 4 bytes)"] = 4.0 * trained
    parts["gradient (x 4)"] = 4.0 * trained
    parts[f"Adam (x {averages})"] = float(averages * trained)
    if rules_of(config.algorithm).needs_reference and lora.rank is None:
        parts[f"the reference, a copy of the model (x {extent.number})"] = float(extent.number * size.parameters)
    elif rules_of(config.algorithm).needs_reference and extent.begun:
        parts["the reference, a copy of the adapter (x 4)"] = 4.0 * trained
    if rules_of(config.algorithm).needs_critic:
        of_critic = 8 + averages  # its weights, their gradient and its optimizer
        parts[f"the critic, a model with an optimizer of its own (x {of_critic})"] = float(of_critic * size.parameters)
    at_once = min(tokens * size.vocabulary, LOGITS_AT_ONCE)
    parts[f"logits ({at_once:,} at a time x 4 bytes x {LOGIT_COPIES})"] = float(at_once * 4 * LOGIT_COPIES)
    checkpointing = config.model.gradient_checkpointing
    layer = layer_bytes(size, extent.number, lora.rank is not None)
    kept = size.layers * (size.hidden * extent.number if checkpointing else layer)
    parts[f"activations ({tokens:,} tokens x {kept:,} bytes)"] = float(tokens * kept)
    if checkpointing:
        parts[f"activations of the layer that is recomputed ({tokens:,} tokens x {layer:,} bytes)"] = float(
            tokens * layer
        )
    pairs = tokens * min(extent.positions, tokens) / 2
    by_flash = config.model.attention == "auto" and extent.gpu is not None and extent.reduced
    if not by_flash and config.model.attention != "flash_attention_2":
        parts["attention masks"] = pairs * (extent.number * size.groups + 1)
    if config.model.attention == "eager":
        layers = 1 if checkpointing else size.layers
        parts["attention weights, as products keep them"] = (
            pairs * layers * size.heads * (4 if extent.number == 4 else 6)
        )
    return parts
