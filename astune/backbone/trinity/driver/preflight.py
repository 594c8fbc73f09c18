"""Find before the first rollout what would stop it: a batch that never fills, GPUs that are not there, a Ray address
where nothing listens, a machine of the cluster that lacks the user's code, the model or the run folder.

Each check raises a `ConfigError` that lists every problem with its remedy. Unchecked, a run would stand still for up to
an hour and end without a word of why.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trinity.common.config import Config as TrinityConfig

from astune.backbone.ray_cluster.connect import join_ray
from astune.backbone.ray_cluster.nodes import ask_nodes, live_nodes, refuse
from astune.config.rules.method import rules_of
from astune.config.schema import AstuneConfig

ADDRESS = "trinity.cluster.ray_address"
PROGRAM = "Trinity"


def check_before(config: AstuneConfig, trinity: TrinityConfig) -> None:
    """Check what needs no Ray, before or after Trinity's own `check_and_update`."""
    batch = _batch(config, trinity) if rules_of(config.algorithm).plays else _training_alone(trinity)
    cluster = trinity.cluster
    counts = not trinity.model.tinker.enable and cluster.node_num and cluster.gpu_per_node  # 0: as many as Ray knows
    gpus = _too_few(trinity, cluster.node_num, cluster.gpu_per_node) if counts else ()
    refuse([*batch, *_engines(trinity), *gpus], PROGRAM)


def check_gpus(trinity: TrinityConfig) -> None:
    """Check the cluster's GPUs before Trinity's `check_and_update` counts them, with Ray not connected. It counts where
    the configuration gives no numbers, and would wait for minutes at an address without Ray, then end the process, and
    divide by zero where no node has a GPU."""
    if trinity.model.tinker.enable or (trinity.cluster.node_num and trinity.cluster.gpu_per_node):
        return
    with join_ray(trinity.cluster.ray_address, "astune_check_gpus", {}, ADDRESS):
        problems = list(_gpus_of(live_nodes(), trinity))
    refuse(problems, PROGRAM)


def check_cluster(config: AstuneConfig, trinity: TrinityConfig, attention: str) -> None:
    """Check what only the cluster knows, with Ray connected: its GPUs, and what each of its nodes can see; `attention`
    is what training workers compute."""
    nodes = live_nodes()
    seen = ask_nodes(nodes, config, trinity.model.model_path, Path(trinity.get_checkpoint_job_dir()), attention)
    refuse([*_gpus_of(nodes, trinity), *seen], PROGRAM)


# ---- A batch that never fills ----


def _batch(config: AstuneConfig, trinity: TrinityConfig) -> Iterator[str]:
    buffer, repeat = trinity.buffer, trinity.algorithm.repeat_times
    tasks, episodes = config.trainer.tasks_per_step, buffer.batch_size * repeat
    if trinity.mode not in ("both", "colocate"):
        yield (
            f"trinity.mode: got {trinity.mode!r}: without explorer and trainer side by side no batch is ever filled or "
            "trained; expected both, or colocate on a single GPU"
        )
    if buffer.batch_size != tasks:
        yield (
            f"trinity.buffer.batch_size: {buffer.batch_size} tasks in a batch never come together, as each step has "
            f"astune.trainer.tasks_per_step = {tasks}; leave it out"
        )
    if buffer.train_batch_size not in (0, episodes):
        yield (
            f"trinity.buffer.train_batch_size: {buffer.train_batch_size}, but a batch brings {episodes} episodes "
            f"({buffer.batch_size} tasks x {repeat} attempts); leave it out, or change astune.trainer.tasks_per_step "
            "or astune.rollout.num_repeat"
        )
    most = trinity.explorer.max_repeat_times_per_runner
    if most and most < repeat:
        yield (
            f"trinity.explorer.max_repeat_times_per_runner: {most} would tear the {repeat} attempts at a task apart, "
            "so no group is ever whole; leave it out"
        )


def _training_alone(trinity: TrinityConfig) -> Iterator[str]:
    if trinity.mode != "train":
        yield (
            f"trinity.mode: got {trinity.mode!r}, which Trinity also takes by itself for a cluster of one GPU that it "
            "counts; expected train, and for one GPU trinity.cluster.node_num: 1 and gpu_per_node: 1"
        )


def _engines(trinity: TrinityConfig) -> Iterator[str]:
    explorer = trinity.explorer
    if explorer.runner_per_model < 1:
        yield f"trinity.explorer.runner_per_model: {explorer.runner_per_model} runners play no task; expected 1 or more"
    if trinity.model.tinker.enable:
        return  # its engine is a client: Trinity sets the sizes to 0
    sizes = ("engine_num", "tensor_parallel_size", "data_parallel_size", "pipeline_parallel_size")
    for name in sizes:
        size = getattr(explorer.rollout_model, name)
        if size < 1:
            yield f"trinity.explorer.rollout_model.{name}: {size}; expected 1 or more"


# ---- GPUs ----


def _gpus_of(nodes: list[dict[str, Any]], trinity: TrinityConfig) -> Iterator[str]:
    if trinity.model.tinker.enable:
        return
    gpus = [(node["NodeManagerAddress"], int(node["Resources"].get("GPU", 0))) for node in nodes]
    there = ", ".join(f"{address} has {number}" for address, number in gpus)
    with_gpus = [number for _, number in gpus if number]
    per_node = trinity.cluster.gpu_per_node or (with_gpus[0] if with_gpus else 0)
    big_enough = sum(number >= per_node for number in with_gpus)
    wanted = trinity.cluster.node_num or len(with_gpus)
    if not with_gpus:
        yield (
            f"{ADDRESS}: no node of the cluster has a GPU ({there}); use a cluster with GPUs, the tinker engine "
            "(trinity.model.tinker.enable), or --backbone=local"
        )
    elif big_enough < wanted:
        yield (
            f"trinity.cluster.node_num, trinity.cluster.gpu_per_node: {wanted} nodes with {per_node} GPUs each are "
            f"asked for, but {there}; lower them, or add nodes to the cluster"
        )
    elif not (trinity.cluster.node_num and trinity.cluster.gpu_per_node):
        yield from _too_few(trinity, wanted, per_node)


def _too_few(trinity: TrinityConfig, nodes: int, per_node: int) -> Iterator[str]:
    """Engines that leave no GPU for the trainer. A single GPU can hold both, in Trinity's mode colocate, which it takes
    by itself where it counts the GPUs."""
    if trinity.mode == "train":
        return
    engines = [("rollout_model", trinity.explorer.rollout_model)]
    engines += [(f"auxiliary_models[{n}]", model) for n, model in enumerate(trinity.explorer.auxiliary_models)]
    sums = {
        name: model.engine_num * model.tensor_parallel_size * model.data_parallel_size * model.pipeline_parallel_size
        for name, model in engines
    }
    needed, total = sum(sums.values()), nodes * per_node
    detected = not (trinity.cluster.node_num and trinity.cluster.gpu_per_node)
    if total == needed == 1 and (trinity.mode == "colocate" or detected):
        return
    if needed >= total:
        told = ", ".join(f"trinity.explorer.{name}: {number}" for name, number in sums.items())
        yield (
            f"the engines take {needed} GPUs ({told}; engine_num x tensor_parallel_size x data_parallel_size x "
            f"pipeline_parallel_size) of {nodes} x {per_node} (trinity.cluster.node_num x gpu_per_node), which leaves "
            "none for the trainer; lower engine_num or a parallel size, or use more GPUs"
        )
