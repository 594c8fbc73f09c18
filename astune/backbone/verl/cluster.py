"""The cluster of a run: what it has to have, checked before anything starts, and Ray's life around the run.

verl waits without end for GPUs and CPUs that no machine has, so they are counted first.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from omegaconf import DictConfig

from astune.backbone.ray_cluster.connect import join_ray
from astune.backbone.ray_cluster.nodes import ask_nodes, live_nodes, refuse
from astune.backbone.verl.demand import CPUS_BESIDES, CPUS_OF_A_GPU, Demand
from astune.backbone.verl.environment import environment
from astune.backbone.verl.trainer.limits import attention_in
from astune.config.schema import AstuneConfig

ADDRESS = "verl.ray_kwargs.ray_init.address"


def _not_honoured(ray_kwargs: DictConfig) -> Iterator[str]:
    """Keys that verl's own launcher acts on, and nothing here."""
    if ray_kwargs.timeline_json_file:
        yield "verl.ray_kwargs.timeline_json_file: ASTune writes no timeline of Ray's; take the key out"
    if any(value is not None for value in ray_kwargs.ray_init.runtime_env.values()):
        yield "verl.ray_kwargs.ray_init.runtime_env: Ray's processes get the environment of this one; take the key out"


def out_of_reach(config: AstuneConfig, nodes: int) -> Iterator[str]:
    """Files that workers on other nodes would look for in vain."""
    if config.rollout.workers and nodes > 1 and config.task_reader.env_service.own_token is not None:
        yield (
            "astune.task_reader.env_service.serve: the run serves it to this machine alone, and astune.rollout.workers "
            f"play on {nodes} nodes; start it where each reaches it (`astune env serve --host 0.0.0.0`) and set env_url"
        )


@contextmanager
def ray_session(config: AstuneConfig, settings: DictConfig) -> Iterator[None]:
    """Join the cluster that the settings name, or start one on this machine that ends with the run. Raises ConfigError
    for what can be found before the first process starts."""
    cpu = settings.trainer.device == "cpu"
    demand, given = Demand.of(settings), settings.ray_kwargs.ray_init
    refuse([*demand.problems(), *_not_honoured(settings.ray_kwargs)], "verl")
    gpus = demand.training_gpus + demand.server_gpus
    enough = max(os.cpu_count() or 1, gpus * CPUS_OF_A_GPU + CPUS_BESIDES)
    resources = {"num_cpus": given.num_cpus or enough}
    if cpu:
        resources["num_gpus"] = gpus
    with join_ray(given.address, f"astune_{uuid.uuid4().hex}", environment(cpu=cpu), ADDRESS, resources):
        nodes, model = live_nodes(), settings.actor_rollout_ref.model.path
        seen = ask_nodes(nodes, config, model, Path(config.runs_dir), attention_in(settings))
        refuse([*demand.missing(nodes), *out_of_reach(config, len(nodes)), *seen], "verl")
        yield
