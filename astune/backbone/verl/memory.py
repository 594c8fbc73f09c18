"""The memory that a run on verl takes, by arithmetic: on each GPU while workers learn, and while servers answer. On a
CPU a process stands for a GPU.

N numbers in all weights, n GPUs that share them out (`fsdp_size`, or all that train), T tokens that a GPU computes at
once, L layers, h hidden size, V tokens in the vocabulary, l numbers in a layer, b bytes of a number in computing (2 in
bfloat16), a bytes that a layer keeps of a token (`layer_bytes`):

| a training worker | while it learns | while servers answer |
| --- | --- | --- |
| weights | 4 N / n | the same; none with `param_offload` |
| gradient | 4 N / n; 4 N with `use_no_sync_for_gradient_accumulation` | none |
| averages of AdamW | 8 N / n | the same; none with `optimizer_offload` |
| the critic, if there is one | 12 N / n; with `param_offload` and `optimizer_offload` nothing | the same |
| gathered weights | b (V h + 2 l) | none |
| activations | T L a, or T (L b h + a) if they are recomputed | none |
| logits | 4 b T V, or b T V + 12 V x tokens whose entropy is computed at a time; with an entropy bonus both | none |

Where an adapter is trained, gradient and averages are the adapter's. A critic learns after the policy, when that has no
gradient any more: its own, of all its weights, is the larger one. With `offload_policy` weights, gradient and
averages are in main memory at all times, as the reference always is where there are GPUs. With sequence parallelism a
GPU computes its part of each row. A server takes `gpu_memory_utilization` of its GPUs: weights in its own precision,
`ROOM` to compute in, and keys and values in what is left. Where `model_dtype` is bf16, 2 stands for 4 and 4 for 8.

`tests/verl/test_memory.py` compares a training worker's with what one takes on a CPU; nothing was measured on a GPU.
Experts count as if all of them computed; states of linear attention and quantized servers are not in it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from astune.backbone.memory.model_size import ModelSize, adapter_numbers, layer_bytes, read_size
from astune.backbone.verl.demand import Demand
from astune.config.rules import needs_policy
from astune.config.rules.method import rules_of
from astune.config.schema import AstuneConfig
from astune.errors import ModelError
from astune.support import machine_memory
from astune.support.machine_memory import show_bytes

BYTES = {"fp32": 4, "float32": 4, "bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2}
"""Of a number, by verl's names of precisions."""
LOGIT_COPIES = 4
"""Logits, their log-softmax, and the gradients of both."""
ENTROPY_CHUNK = 2048
"""Tokens whose entropy is computed at a time."""
ENTROPY_BYTES = 12
"""Of each logit of a chunk: in float32 itself, its softmax, and the product of both."""
FILL = 0.95
"""Of a GPU: the rest goes to CUDA itself, and is lost between blocks."""
ROOM = 3e9
"""Bytes that a server on a GPU computes in: activations, and CUDA graphs."""
PROCESS = 600 * 2**20
"""What a process on a CPU takes before there is a model: it has imported verl, torch and transformers."""
ROLLOUT, ACTOR = "verl.actor_rollout_ref.rollout", "verl.actor_rollout_ref.actor"
AWAY = {
    "weights": "param_offload",
    "averages of AdamW": "optimizer_offload",
    "the critic's weights": "param_offload",
    "the critic's averages": "optimizer_offload",
}
"""Parts of a worker that the keys of verl's keep in main memory while servers answer, and the critic's while the policy
learns."""


class Lack(NamedTuple):
    """What does not fit: the key to change, what is wrong, and what to do."""

    key: str
    what: str
    remedy: str


@dataclass(frozen=True)
class VerlMemory:
    """Bytes by what they are for. `learning` and `resting` are of the GPU of a training worker, `server_weights` of a
    GPU of a server; `per_token` are the keys and values of a token on such a GPU. A server has at most `conversations`
    of up to `length` tokens. `used` is `gpu_memory_utilization`; `shares`: servers are on the workers' GPUs, where
    with `stays` they keep what they have while these learn."""

    demand: Demand
    plays: bool
    """Whether there are servers."""
    learning: Mapping[str, float]
    resting: Mapping[str, float]
    server_weights: float
    per_token: float
    conversations: int
    length: int
    used: float
    shares: bool
    stays: bool

    @property
    def least_server(self) -> float:
        """Without room for one conversation a server does not start."""
        return self.server_weights + ROOM + self.per_token * self.length

    def tokens(self, gpu: float) -> int:
        """Most tokens that have their keys and values in a server at a time."""
        return max(int((self.used * gpu - ROOM - self.server_weights) / self.per_token), 0)

    def least_gpu(self) -> float:
        """Bytes of the smallest GPU that all of it fits into, infinite where it fits into none."""
        beside = FILL - self.used
        needs = [self.least_server / self.used] if self.plays else []
        for taken, is_beside in ((self.learning, self.stays), (self.resting, self.shares)):
            left = beside if is_beside else FILL
            needs.append(sum(taken.values()) / left if left > 0 else math.inf)
        return max(needs)

    def lacks(self, gpu: float) -> Iterator[Lack]:
        """Say what does not fit into GPUs of `gpu` bytes."""
        of_server = self.used * gpu
        learns = sum(self.learning.values()) + (of_server if self.stays else 0.0)
        answers = sum(self.resting.values()) + of_server
        key = f"{ROLLOUT}.gpu_memory_utilization"
        if learns > FILL * gpu:
            yield Lack(*self._too_much(learns, gpu))
        if self.shares and answers > FILL * gpu:
            most = math.floor(100 * (FILL - sum(self.resting.values()) / gpu)) / 100
            what = f"servers with what workers keep beside them take about {show_bytes(answers)} of {show_bytes(gpu)}"
            offload = f"{ACTOR}.fsdp_config.optimizer_offload: true"
            yield Lack(key, what, f"{f'lower it to {most}, or set' if most > 0.1 else 'set'} {offload}")
        if self.plays and of_server < self.least_server:
            yield Lack(
                key,
                f"servers have {show_bytes(of_server)} of each GPU, and take at least {show_bytes(self.least_server)}: "
                f"weights, room to compute in and one conversation of {self.length:,} tokens",
                f"raise it, or {ROLLOUT}.tensor_model_parallel_size, or lower astune.model.max_model_len",
            )

    def _too_much(self, learns: float, gpu: float) -> tuple[str, str, str]:
        what = f"a worker takes about {show_bytes(learns)} of {show_bytes(gpu)} while it learns: {self._show_parts()}"
        largest = max(self.learning, key=lambda name: self.learning[name])
        if self.stays and self.used * gpu > self.learning[largest]:
            return f"{ROLLOUT}.free_cache_engine", what, "set it to true: servers then give their memory away"
        if largest.startswith(("activations", "logits")):
            remedy = "lower it, or set astune.model.gradient_checkpointing: true; longer rows are shared out by "
            remedy += f"{ACTOR}.ulysses_sequence_parallel_size"
            return "astune.trainer.micro_batch_tokens", what, remedy
        remedy = f"take more, or set {ACTOR}.fsdp_config.offload_policy: true: weights and optimizer in main memory"
        return "verl.trainer.n_gpus_per_node", what, remedy

    def _show_parts(self) -> str:
        return " + ".join(f"{name} {show_bytes(size)}" for name, size in self.learning.items())

    def table(self, gpu: float | None) -> list[str]:
        """Say what each role takes, for people; `gpu` is the size of one, where that is known."""
        lines = [f"a worker learns   in about {show_bytes(sum(self.learning.values()))}: {self._show_parts()}"]
        least = self.least_gpu()
        fits = "no GPU (gpu_memory_utilization)" if least == math.inf else f"GPUs of {show_bytes(least)} or more"
        fits = f"all of it fits    {fits}, by estimate"
        if not self.plays:
            return [*lines, fits]
        if self.shares:
            kept = " + ".join(f"{name} {show_bytes(size)}" for name, size in self.resting.items())
            lines.append(f"a worker keeps    {kept or 'nothing'} while servers answer")
        of_each = f"a server takes    {self.used:g} of each of its GPUs: weights {show_bytes(self.server_weights)}, "
        of_each += f"{show_bytes(ROOM)} to compute in, keys and values at {self.per_token:,.0f} bytes a token"
        if gpu is not None:
            tokens = self.tokens(gpu)
            each = tokens // self.conversations
            of_each += f": {tokens:,}, so {each:,} for each of {self.conversations} conversations"
        return [*lines, of_each, fits]

    def on_cpu(self) -> Mapping[str, float]:
        """Bytes that all processes take of a machine without GPUs, whose servers keep what they have while workers
        learn."""
        server = self.server_weights + self.per_token * self.length * self.conversations
        workers, servers = self.demand.training_gpus, self.demand.servers if self.plays else 0
        return {
            f"{workers} training workers with {self._show_parts()} each": workers * sum(self.learning.values()),
            f"{servers} servers of weights and {self.conversations} x {self.length:,} positions": servers * server,
            f"{workers + servers} processes": float((workers + servers) * PROCESS),
        }


def describe_memory(config: AstuneConfig, settings: Mapping[str, Any], directory: Path) -> list[str]:
    """Say before a run starts how much memory it takes. `directory` has the model; GPUs are taken to be like those of
    this machine, where it has any."""
    length = settings["actor_rollout_ref"]["rollout"]["max_model_len"]
    try:
        memory = estimate(read_size(directory), settings, config, length)
    except ModelError as error:
        return [f"memory            not estimated: {error}"]
    if settings["trainer"]["device"] == "cpu":
        needed, machine = sum(memory.on_cpu().values()), machine_memory.of_the_machine()
        less = f"; WARNING: only {show_bytes(machine.free)} are free" if needed > machine.free else ""
        return [f"memory            about {show_bytes(needed)} of this machine, by estimate{less}"]
    smallest = min((gpu.total for gpu in machine_memory.gpus()), default=None)
    lacks = memory.lacks(smallest) if smallest is not None else ()
    return [*memory.table(smallest), *(f"WARNING           {lack.what}; {lack.key}: {lack.remedy}" for lack in lacks)]


def estimate(size: ModelSize, settings: Mapping[str, Any], config: AstuneConfig, length: int) -> VerlMemory:
    """From verl's configuration, whole or only what is set of it. `length` is that of the longest conversation."""
    parts, demand = settings["actor_rollout_ref"], Demand.of(settings)
    rollout, fsdp = parts["rollout"], parts["actor"].get("fsdp_config", {})
    learning = _learning(size, parts, config, demand, length)
    number = 4 if settings["trainer"]["device"] == "cpu" else BYTES[str(rollout.get("dtype", "bfloat16"))]
    tensor, pipeline = (rollout.get(f"{kind}_model_parallel_size", 1) for kind in ("tensor", "pipeline"))
    plays = needs_policy(config)
    shares = plays and demand.server_nodes == 0
    return VerlMemory(
        demand,
        plays,
        learning,
        {name: learning[name] for name, key in AWAY.items() if name in learning and not fsdp.get(key, False)},
        server_weights=number * size.parameters / (tensor * pipeline),
        per_token=2 * size.layers / pipeline * max(size.kv_heads / tensor, 1) * size.head_dim * number,
        conversations=-(-config.rollout.max_concurrent // demand.servers),
        length=length,
        used=rollout.get("gpu_memory_utilization", 0.5),
        shares=shares,
        stays=shares and not rollout.get("free_cache_engine", True),
    )


def _learning(
    size: ModelSize, parts: Mapping[str, Any], config: AstuneConfig, demand: Demand, length: int
) -> dict[str, float]:
    actor, count = parts["actor"], size.parameters
    fsdp, sequence = actor.get("fsdp_config", {}), actor.get("ulysses_sequence_parallel_size", 1)
    number = BYTES[str((fsdp.get("mixed_precision") or {}).get("param_dtype", "bf16"))]
    ranks = demand.training_gpus if fsdp.get("fsdp_size", -1) == -1 else fsdp["fsdp_size"]
    lora = config.model.lora
    added = 0 if lora.rank is None else adapter_numbers(size, lora.rank, lora.targets)
    trained = added or count
    own, critic = BYTES[str(fsdp.get("model_dtype", "fp32"))], rules_of(config.algorithm).needs_critic
    gradient = float(own * (count if critic else trained))
    if not fsdp.get("use_no_sync_for_gradient_accumulation", False):
        gradient /= ranks
    averages = 2 * own * trained / ranks
    kept = {"weights": own * (count + added) / ranks, "gradient": gradient, "averages of AdamW": averages}
    if critic:
        of_critic = {"the critic's weights": own * count / ranks, "the critic's averages": 2 * own * count / ranks}
        kept |= {name: size for name, size in of_critic.items() if not fsdp.get(AWAY[name], False)}
    if fsdp.get("offload_policy", False):
        kept = {}
    wide = size.vocabulary * size.hidden
    layer = (count - wide * (1 if size.tied else 2)) / size.layers
    in_step = config.trainer.tasks_per_step * config.rollout.num_repeat * length * sequence // demand.training_gpus
    tokens = max(min(config.trainer.micro_batch_tokens, in_step), -(-length // sequence))
    of_layer = layer_bytes(size, number, has_adapter=added > 0)
    recomputed = config.model.gradient_checkpointing
    of_token = size.layers * number * size.hidden + of_layer if recomputed else size.layers * of_layer
    of_logits = max(LOGIT_COPIES * number * tokens, number * tokens + ENTROPY_BYTES * min(tokens, ENTROPY_CHUNK))
    if config.algorithm.entropy_bonus:
        of_logits = (LOGIT_COPIES * number + ENTROPY_BYTES) * tokens
    return kept | {
        "gathered weights": float(number * (wide + 2 * layer)),
        f"activations of {tokens:,} tokens": float(tokens * of_token),
        "logits": float(size.vocabulary * of_logits),
    }
