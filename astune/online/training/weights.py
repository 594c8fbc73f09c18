"""The weights and baselines that a commit trains, at the version that it begins from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from astune.algorithm import StepEstimator, load_estimator
from astune.algorithm.step_advantage import PerGroup, Rewards, RunningMean, StepWiseGrpo
from astune.config.algorithm import AlgorithmConfig
from astune.config.schema import AstuneConfig
from astune.online.store.versions import ModelVersion
from astune.online.training.checkpoint import check
from astune.training.engine import Engine, LoadEngine


class WithoutSiblings(StepEstimator):
    """`within` compares the attempts at one task with each other. One that stands alone is compared with what others of
    its kind got in earlier commits, those of the first commit with each other (`RunningMean`)."""

    def __init__(self, config: AlgorithmConfig, within: StepEstimator) -> None:
        super().__init__(config)
        self._within, self._alone = within, RunningMean(config)

    def __call__(self, population: str, groups: Sequence[Rewards]) -> list[list[float]]:
        several = [len(group.values) > 1 for group in groups]
        compared = iter(self._within(population, [group for group, many in zip(groups, several, strict=True) if many]))
        alone = iter(self._alone(population, [group for group, many in zip(groups, several, strict=True) if not many]))
        return [next(compared) if many else next(alone) for many in several]

    def observe(self, populations: Mapping[str, Sequence[Rewards]]) -> None:
        self._alone.observe(populations)

    def save(self, directory: Path) -> None:
        self._alone.save(directory)

    def load(self, directory: Path) -> None:
        self._alone.load(directory)


def make_online_estimator(config: AlgorithmConfig) -> StepEstimator:
    """Make the estimator of `astune.algorithm.advantage`; one that looks at a single group gets a baseline for attempts
    that have no siblings."""
    found = load_estimator(config)
    return WithoutSiblings(config, found) if isinstance(found, PerGroup | StepWiseGrpo) else found


class Weights:
    """The engine and the baselines, exactly as a version left them, whatever was done with them since.

    Invariant: `at` gives the same weights, bit for bit, in a process that made that version and in one that begins with
    it. The model as configured has no folder, so it is loaded anew.
    """

    def __init__(self, config: AstuneConfig, load_engine: LoadEngine, versions: Path) -> None:
        self._config, self._load, self._versions = config, load_engine, versions
        self._engine: Engine | None = None
        self._at: int | None = None
        self.estimator: StepEstimator = make_online_estimator(config.algorithm)

    async def at(self, version: ModelVersion) -> Engine:
        """Raises RunFolderError for a checkpoint that is not as it was written; nothing is changed then."""
        if self._engine is not None and self._at == version.number:
            return self._engine
        folder = None if version.folder is None else self._versions / version.folder
        if folder is not None:
            check(folder, version.sha256)
        self.mark_changed()
        if self._engine is None or folder is None:
            self._engine = self._load(self._config)
        self.estimator = make_online_estimator(self._config.algorithm)
        if folder is not None:
            self._engine.learner.load(folder)
            self.estimator.load(folder)
        self._at = version.number
        return self._engine

    def mark_changed(self) -> None:
        """From now on they are those of no version."""
        self._at = None

    def mark_version(self, number: int) -> None:
        """They are those of version `number`, which stands in the database."""
        self._at = number
