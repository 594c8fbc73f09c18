"""The GPUs and CPUs that a run asks verl for, counted before anything starts: verl waits without end for those that no
machine has."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from astune.config.rules import needs_policy
from astune.config.rules.method import rules_of
from astune.config.schema import AstuneConfig

CPUS_OF_A_GPU = 3
"""CPUs that verl asks Ray for with each GPU: for as many processes as may share one."""
CPUS_BESIDES = 4
"""Those of the processes that stand beside the GPUs."""


@dataclass(frozen=True)
class Demand:
    """The GPUs that a run asks for, by verl's keys; on a CPU a GPU is a process. `server_nodes` is 0 where servers
    share the GPUs of the training workers."""

    nodes: int
    gpus_per_node: int
    server_nodes: int
    server_gpus_per_node: int
    gpus_of_a_server: int

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Demand:
        """From verl's configuration, whole or only what is set of it."""
        trainer, rollout = settings["trainer"], settings["actor_rollout_ref"]["rollout"]
        sizes = ("tensor_model_parallel_size", "data_parallel_size", "pipeline_model_parallel_size")
        return cls(
            trainer["nnodes"],
            trainer["n_gpus_per_node"],
            rollout.get("nnodes", 0),
            rollout.get("n_gpus_per_node", trainer["n_gpus_per_node"]),
            math.prod(rollout.get(size, 1) for size in sizes),
        )

    @property
    def training_gpus(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def server_gpus(self) -> int:
        """GPUs that servers have for themselves."""
        return self.server_nodes * self.server_gpus_per_node

    @property
    def servers(self) -> int:
        return (self.server_gpus or self.training_gpus) // self.gpus_of_a_server

    def table(self, config: AstuneConfig) -> list[str]:
        """Say what runs where, for people. A run that plays nothing has no servers."""
        servers, workers = needs_policy(config), config.rollout.workers
        where = f"{self.server_nodes} x {self.server_gpus_per_node} GPUs of their own"
        playing = [f"episodes          by {workers} workers, on all nodes by their CPUs"] if servers and workers else []
        return [
            f"training workers  {self.training_gpus} on {self.nodes} x {self.gpus_per_node} GPUs",
            *_beside(config),
            f"servers           {self.servers}, of {self.gpus_of_a_server} GPUs each, on "
            + (where if self.server_nodes else "the GPUs of the training workers, by turns")
            if servers
            else "servers           none, as nothing is played",
            *playing,
        ]

    def problems(self) -> Iterator[str]:
        """Say what does not come out even."""
        keys = "verl.actor_rollout_ref.rollout.{tensor_model,pipeline_model,data}_parallel_size"
        gpus = self.server_gpus or self.training_gpus
        if gpus % self.gpus_of_a_server:
            yield f"{keys}: servers of {self.gpus_of_a_server} GPUs each do not fill {gpus}"

    def missing(self, nodes: Sequence[Mapping[str, Any]]) -> Iterator[str]:
        """Say what the nodes of a cluster lack."""
        there = ", ".join(
            f"{node['NodeManagerAddress']} has {_of(node, 'GPU')} GPUs and {_of(node, 'CPU')} CPUs" for node in nodes
        )
        wanted = [(self.nodes, self.gpus_per_node, "verl.trainer.nnodes, verl.trainer.n_gpus_per_node")]
        if self.server_nodes:
            key = "verl.actor_rollout_ref.rollout"
            wanted.append((self.server_nodes, self.server_gpus_per_node, f"{key}.nnodes, {key}.n_gpus_per_node"))
        gpus, cpus = ({node["NodeID"]: _of(node, kind) for node in nodes} for kind in ("GPU", "CPU"))
        for count, each, keys in wanted:
            for number in range(count):
                fitting = [node for node in gpus if gpus[node] >= each and cpus[node] >= CPUS_OF_A_GPU * each]
                if not fitting:
                    yield (
                        f"{keys}: {count} nodes with {each} free GPUs and {CPUS_OF_A_GPU * each} CPUs each are asked "
                        f"for, and {number} are there: {there}; lower them, or add nodes to the cluster"
                    )
                    return
                taken = min(fitting, key=lambda node: gpus[node])
                gpus[taken] -= each
                cpus[taken] -= CPUS_OF_A_GPU * each


def _beside(config: AstuneConfig) -> Iterator[str]:
    """The models that training workers hold beside the one that they train. The reference of an adapter is none."""
    algorithm = config.algorithm
    shared = "shared out over the training workers, in their machines' memory: 4 bytes for each of its numbers"
    if rules_of(algorithm).needs_reference and config.model.lora.rank is None:
        yield f"reference         {shared}"
    if isinstance(algorithm.teacher, str):
        yield f"teacher           {shared}"
    if rules_of(algorithm).needs_critic:
        each = "12 bytes for each of its numbers, 4 more while it learns"
        yield f"critic            as large as the model, trained beside it by the training workers: {each}"


def _of(node: Mapping[str, Any], kind: str) -> int:
    return int(node["Resources"].get(kind, 0))
