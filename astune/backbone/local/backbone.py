"""The local backbone: the training loop over torch in this process."""

from __future__ import annotations

from typing import ClassVar

from astune.backbone.local.engine import load_engine
from astune.config.load import LoadedConfig
from astune.training.start import run_training
from astune.types import RunReport


class LocalBackbone:
    """Rollouts, learning and evaluation in one process with torch and transformers."""

    name: ClassVar[str] = "local"
    honours: ClassVar[frozenset[str]] = frozenset({"astune"})
    ignored_sections: ClassVar[frozenset[str]] = frozenset({"astune.debug", "astune.online", "trinity", "verl"})

    def run(self, loaded: LoadedConfig) -> RunReport:
        return run_training(loaded, load_engine)
