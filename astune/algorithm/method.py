"""The steps of a method of learning, which the training loop takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from astune.algorithm.batch_rules import Ruled
from astune.algorithm.step_advantage import StepEstimator, load_estimator
from astune.config.rules.method import MethodRules, rules_of
from astune.config.schema import AlgorithmConfig
from astune.errors import PluginError
from astune.types import Sample


class Scorer(Protocol):
    """The part of a learner that says how likely samples are."""

    async def logprobs(self, samples: Sequence[Sample], *, reference: bool = False) -> list[Sequence[float]]:
        """See `Learner.logprobs`."""


class Method(MethodRules):
    """A method of learning: one object for a run, or for a stage of one. A method that plays episodes takes these steps
    in this order; one that learns from examples (`ExampleMethod`) takes the last alone.

        ruled = method.choose(rules(groups))
        samples, receipt = to_samples(ruled.groups, method.estimator(), ...)
        samples, figures = await method.before_update(learner, samples)     # for each update
    """

    def estimator(self) -> StepEstimator:
        """Make the estimator that gives attempts their advantages."""
        return load_estimator(self.algorithm)

    def choose(self, ruled: Ruled) -> Ruled:
        """Choose what is learned from of the groups of a step, with the reason for everything that is left out."""
        return ruled

    async def before_update(
        self, learner: Scorer, samples: Sequence[Sample]
    ) -> tuple[Sequence[Sample], dict[str, float]]:
        """Give the samples as the update is to take them, and figures to be logged with its own."""
        return samples, {}


def method_of(algorithm: AlgorithmConfig) -> Method:
    """The method of a configuration. Raises PluginError for one that there is not."""
    found = rules_of(algorithm)
    if not isinstance(found, Method):
        raise PluginError(f"method {algorithm.method!r} does not derive from astune.algorithm.method.Method")
    return found
