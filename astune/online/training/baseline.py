"""Advantages where some attempts have siblings and others have none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from astune.algorithm import StepEstimator, load_estimator
from astune.algorithm.step_advantage import PerGroup, Rewards, RunningMean, StepWiseGrpo
from astune.config.algorithm import AlgorithmConfig


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


def online_estimator(config: AlgorithmConfig) -> StepEstimator:
    """That of `astune.algorithm.advantage`; one that looks at a single group gets a baseline for attempts that have no
    siblings."""
    found = load_estimator(config)
    return WithoutSiblings(config, found) if isinstance(found, PerGroup | StepWiseGrpo) else found
