"""An engine on a real Ray of this machine: two training workers that share two servers with them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import psutil
import pytest
import ray

from astune.backbone.ray_cluster.nodes import live_nodes
from astune.config.load import LoadedConfig, load_config
from astune.support.resources import tutorial_dir
from astune.training.engine import Engine
from astune.training.start import run_training
from astune.types import RunReport
from tests.launched import wait_for

DEMO = tutorial_dir() / "math_agent" / "demo.yaml"
SETTINGS = (
    "astune.trainer.tasks_per_step=4",
    "astune.rollout.num_repeat=4",
    "astune.trainer.total_steps=3",
    "astune.trainer.save_every=1",
    "astune.trainer.lr_schedule=constant",
    "astune.evaluation.before=false",
    "astune.evaluation.every=0",
    "astune.evaluation.after=false",
    "astune.monitor.check_invariants=true",
    "astune.monitor.progress=plain",
    "astune.monitor.trackers=[]",
)
JOIN = """
from astune.backbone.ray_cluster.connect import patient_start
from ray.scripts.scripts import main
with patient_start():
    main()
"""
"""The command `ray`, with more time for its processes."""
OF_ONE_PROCESS = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "DIST_INIT_METHOD",
)


def demo(*more: str, backbone: str = "verl") -> LoadedConfig:
    own = ("verl.trainer.n_gpus_per_node=2",) if backbone == "verl" else ()
    return load_config(DEMO, [*SETTINGS, *own, *more], backbone=backbone)


@contextmanager
def started() -> Iterator[Engine]:
    """The engine of `demo`. Ray's processes take over this one's environment, so what tests without Ray left there is
    taken out."""
    from astune.backbone.verl.engine import load_engine

    loaded = demo()
    with pytest.MonkeyPatch.context() as patch:
        for name in OF_ONE_PROCESS:
            patch.delenv(name, raising=False)
        engine = load_engine(loaded, loaded.config.astune)
    try:
        yield engine
    finally:
        engine.close()


@contextmanager
def second_node() -> Iterator[psutil.Process]:
    """A second node in the cluster that the engine has started; its raylet."""
    address = ray.get_runtime_context().gcs_address
    command = [sys.executable, "-c", JOIN, "start", "--address", address, "--num-cpus=8", "--block"]
    own = {name: value for name, value in os.environ.items() if name not in OF_ONE_PROCESS}
    process = subprocess.Popen(command, env=own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        wait_for(process, lambda: len(live_nodes()) == 2, 600.0)
        children = psutil.Process(process.pid).children(recursive=True)
        yield next(child for child in children if child.name() == "raylet")
    finally:
        process.terminate()
        process.communicate()


def run_on(engine: Engine, *settings: str) -> RunReport:
    """A run on an engine that goes on after it."""
    return run_training(demo(*settings), lambda config: replace(engine, close=lambda: None))
