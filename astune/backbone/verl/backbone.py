"""Run `--backbone=verl`: the training loop of `local`, over verl's training workers and servers on Ray."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from functools import partial
from typing import ClassVar

from astune.backbone.base import Backbone
from astune.backbone.verl.environment import environment
from astune.backbone.verl.trainer.settings import Settings, on_cpu, settings_of
from astune.backbone.verl.versions import require_verl
from astune.config.load import LoadedConfig
from astune.errors import ConfigError
from astune.training.engine import LoadEngine
from astune.training.start import run_training
from astune.types import RunReport


class VerlBackbone(Backbone):
    """Gradient, optimizer, weights and sampling are verl's; everything else is as on `local`."""

    name: ClassVar[str] = "verl"
    honours: ClassVar[frozenset[str]] = frozenset({"astune", "verl"})
    ignored_sections: ClassVar[frozenset[str]] = frozenset({"astune.debug", "astune.online", "trinity"})

    def problems(self, loaded: LoadedConfig) -> Iterator[str]:
        try:
            _settings(loaded)
        except ConfigError as error:
            yield from str(error).splitlines()

    def require_packages(self, loaded: LoadedConfig) -> None:
        settings = _settings(loaded)
        require_verl(settings.server, settings.attention, settings.way)

    def run(self, loaded: LoadedConfig) -> RunReport:
        return run_training(loaded, engine_of(loaded))


def engine_of(loaded: LoadedConfig) -> LoadEngine:
    """What starts the engine of a configuration. Raises ConfigError and MissingDependency for what can be found without
    verl."""
    VerlBackbone().require_packages(loaded)
    os.environ.update(environment(cpu=on_cpu(loaded)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # verl tells of every engine that is not installed
        from astune.backbone.verl.engine import load_engine
    return partial(load_engine, loaded)


def _settings(loaded: LoadedConfig) -> Settings:
    """Of the run, or of its first stage. Raises ConfigError for any stage, before the first begins."""
    made = []
    for number, stage in enumerate(loaded.stages, start=1):
        try:
            made.append(settings_of(stage))
        except ConfigError as error:
            raise ConfigError(f"stage {number}: {error}") from error
    return made[0] if made else settings_of(loaded)
