"""Real Ray and real Trinity: `make test-trinity` installs them; without them, tests that need them skip themselves."""

import os
from collections.abc import Iterator
from typing import Any

import pytest

os.environ.update(
    RAY_USAGE_STATS_ENABLED="0",  # no report to Ray's makers
    RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0",  # what Ray would otherwise warn of
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A Ray cluster of two nodes on this machine, this process joined to it: one without GPUs, and one that says it
    has two, which is all that Ray needs to hand them out."""
    ray = pytest.importorskip("ray", reason="make test-trinity installs it")
    from ray.cluster_utils import Cluster

    from astune.backbone.ray_cluster.connect import patient_start

    with patient_start():
        made = Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 2, "object_store_memory": 100 * 2**20, "include_dashboard": False},
        )
        made.add_node(num_cpus=1, num_gpus=2, object_store_memory=100 * 2**20)
    ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
    yield made
    ray.shutdown()
    made.shutdown()
