"""Run `--backbone=verl`: the training loop of `local`, over verl's training workers and servers on Ray."""

from __future__ import annotations

import importlib.util
import os
import warnings
from collections.abc import Iterator
from functools import partial
from typing import ClassVar

from astune.backbone.base import Backbone
from astune.backbone.foreign.packages import INSTALL_FLASH, Needed, lacking, missing, wrong_python
from astune.backbone.verl.environment import environment
from astune.backbone.verl.trainer.settings import Settings, on_cpu, settings_of
from astune.config.load import LoadedConfig
from astune.errors import ConfigError, MissingDependency
from astune.training.engine import LoadEngine
from astune.training.start import run_training
from astune.types import RunReport

VERL = Needed("verl", "verl", (0, 9, 1), (0, 9, 2))
RAY = Needed("ray", "ray", (2, 50), (3,))
HYDRA = Needed("hydra-core", "hydra", (1, 3), (1, 4), "verl reads its configuration with it")
OMEGACONF = Needed("omegaconf", "omegaconf", (2, 1), (2, 4), "with the antlr4 of 2.4 hydra's grammar does not load")
TENSORDICT = Needed("tensordict", "tensordict", (0, 8), (0, 16))
CACHETOOLS = Needed("cachetools", "cachetools", (5,), (10,), "verl imports it and does not ask for it")
ALWAYS = (VERL, RAY, HYDRA, OMEGACONF, TENSORDICT, CACHETOOLS)
SERVERS = {
    "vllm": Needed("vllm", "vllm", (0, 24), (0, 25), "verl's servers on GPUs"),
    "sglang": Needed("sglang", "sglang", (0, 5, 12), (0, 5, 13), "verl's servers on GPUs"),
}
"""By what `verl.actor_rollout_ref.rollout.name` calls them."""

CUPY = 'pip install "verl[cupy-cu130]==0.9.1"'
HOW = f"""To install, with Python 3.10 to 3.12:
  pip install "astune[verl]" "verl[vllm]==0.9.1"
  {INSTALL_FLASH}
Without GPUs, and why in two calls: external/verl/README.md"""


def require_verl(server: str, attention: str, way: str) -> None:
    """Raises `MissingDependency` that names everything that is missing or of a wrong version. `server` is what answers
    episodes: "vllm", "sglang", or our own sampler, which needs nothing more; `attention` transformers' name of that in
    training workers, `way` verl's name of how weights travel to servers on GPUs of their own."""
    problems = list(wrong_python("verl"))
    for needed in (*ALWAYS, *([SERVERS[server]] if server in SERVERS else [])):
        problems += missing(needed)
    problems += lacking(attention)
    if way == "nccl" and importlib.util.find_spec("cupy") is None:
        problems.append(f"cupy is not installed, and weights travel with it (checkpoint_engine.backend: nccl); {CUPY}")
    if problems:
        raise MissingDependency("--backbone=verl cannot start:\n  - " + "\n  - ".join(problems) + f"\n{HOW}")


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
    """Give the function that starts the engine of a configuration. Raises ConfigError and MissingDependency for what
    can be found without verl."""
    VerlBackbone().require_packages(loaded)
    os.environ.update(environment(cpu=on_cpu(loaded)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # verl tells of every engine that is not installed
        from astune.backbone.verl.engine import load_engine
    return partial(load_engine, loaded)


def _settings(loaded: LoadedConfig) -> Settings:
    """The settings of the run, or of its first stage. Raises ConfigError for any stage, before the first begins."""
    made = []
    for number, stage in enumerate(loaded.stages, start=1):
        try:
            made.append(settings_of(stage))
        except ConfigError as error:
            raise ConfigError(f"stage {number}: {error}") from error
    return made[0] if made else settings_of(loaded)
