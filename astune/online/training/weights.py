"""What a commit trains, at the version that it begins from."""

from __future__ import annotations

from pathlib import Path

from astune.algorithm import StepEstimator
from astune.config.schema import AstuneConfig
from astune.online.training.baseline import online_estimator
from astune.online.training.checkpoint import check
from astune.store.versions import ModelVersion
from astune.training.engine import Engine, LoadEngine


class Weights:
    """The engine and the baselines, exactly as a version left them, whatever was done with them since.

    Invariant: `at` gives the same weights, bit for bit, in a process that made that version and in one that begins with
    it. The model as configured has no folder, so it is loaded anew.
    """

    def __init__(self, config: AstuneConfig, load_engine: LoadEngine, versions: Path) -> None:
        self._config, self._load, self._versions = config, load_engine, versions
        self._engine: Engine | None = None
        self._at: int | None = None
        self.estimator: StepEstimator = online_estimator(config.algorithm)

    async def at(self, version: ModelVersion) -> Engine:
        """Raises RunFolderError for a checkpoint that is not as it was written."""
        if self._engine is not None and self._at == version.number:
            return self._engine
        if self._engine is None or version.folder is None:
            self._engine = self._load(self._config)
        self.estimator = online_estimator(self._config.algorithm)
        if version.folder is not None:
            folder = self._versions / version.folder
            check(folder, version.sha256)
            self._engine.learner.load(folder)
            self.estimator.load(folder)
        self._at = version.number
        return self._engine

    def changing(self) -> None:
        """From now on they are those of no version."""
        self._at = None

    def became(self, number: int) -> None:
        """They are those of version `number`, which stands in the database."""
        self._at = number
