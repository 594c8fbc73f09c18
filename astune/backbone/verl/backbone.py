"""Run `--backbone=verl`: the training loop of `local`, over verl's training workers and servers on Ray."""

from __future__ import annotations

import os
import warnings
from functools import partial
from typing import ClassVar

from astune.backbone.verl.environment import environment
from astune.backbone.verl.trainer.settings import on_cpu, settings_of
from astune.backbone.verl.versions import require_verl
from astune.config.load import LoadedConfig
from astune.training.start import run_training
from astune.types import RunReport


class VerlBackbone:
    """Gradient, optimizer, weights and sampling are verl's; everything else is as on `local`."""

    name: ClassVar[str] = "verl"
    honours: ClassVar[frozenset[str]] = frozenset({"astune", "verl"})
    ignored_sections: ClassVar[frozenset[str]] = frozenset({"astune.debug", "astune.online", "trinity"})

    def run(self, loaded: LoadedConfig) -> RunReport:
        settings = settings_of(loaded)
        require_verl(settings.tree["actor_rollout_ref"]["rollout"]["name"])
        os.environ.update(environment(cpu=on_cpu(loaded)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # verl tells of every engine that is not installed
            from astune.backbone.verl.engine import load_engine
        return run_training(loaded, partial(load_engine, loaded))
