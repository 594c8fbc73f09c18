"""What verl's registries have to know of our servers. verl imports this module itself, in every process: see
`VERL_USE_EXTERNAL_MODULES` in `environment.py`."""

from __future__ import annotations

from verl.workers.rollout import base
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry


def _replica() -> type[RolloutReplica]:
    from astune.backbone.verl.servers.cpu_server import CpuReplica

    return CpuReplica


RolloutReplicaRegistry.register("astune_cpu", _replica)
# the other half has no public way to be registered
base._ROLLOUT_REGISTRY[("astune_cpu", "async")] = "astune.backbone.verl.servers.cpu_server.WeightSender"
