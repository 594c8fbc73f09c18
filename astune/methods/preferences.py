"""Updates on preferences, in two passes: the base of `dpo` and `kto`.

A loss over whole answers needs the log-probability of all their tokens before it has a gradient for any. So a first
pass, without gradient, gives those under the policy and under the reference; from them come the loss and its derivative
by each answer's log-probability, in double precision; and an update with these derivatives as advantages follows the
gradient of the loss exactly. Rows of a pair need not meet in a micro-batch, and an answer may be several rows.

An answer has log p, its log-probability under the weights that are trained, and log p_ref under those that the run, or
its stage, began with; gain = log p - log p_ref. The loss of an update is the mean over its examples.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from astune.algorithm.method import Scorer
from astune.config.schema import AstuneConfig
from astune.examples.episodes import JudgedAttempts
from astune.examples.example import TrainingExample
from astune.examples.method import ExampleMethod
from astune.examples.samples import preference_samples
from astune.monitor.episodes import EpisodeRecord
from astune.types import Sample

Rows: TypeAlias = Mapping[bool, Sequence[int]]
"""The numbers of the samples of one example: of its good answer, and of its bad one."""
Slopes: TypeAlias = tuple[list[float], dict[str, float]]
"""The derivative of the loss by the log-probability of each sample, and the figures of the loss."""


@dataclass(frozen=True)
class ScoredAnswer:
    """Log-probabilities of an answer, summed over its tokens, of which there are `tokens`."""

    logprob: float
    reference: float
    tokens: int

    @property
    def gain(self) -> float:
        return self.logprob - self.reference


class PreferenceMethod(ExampleMethod):
    """A method with a loss over whole answers, good and bad ones."""

    compares = True

    @abstractmethod
    async def slopes(
        self, learner: Scorer, samples: Sequence[Sample], answers: Sequence[ScoredAnswer], examples: Sequence[Rows]
    ) -> Slopes:
        """Compute the slopes of all samples; `answers` says how likely each of them is."""

    def read_episode(self, record: EpisodeRecord, place: str, attempts: JudgedAttempts) -> Iterator[TrainingExample]:
        attempts.add(record, place)
        yield from ()

    def samples(self, examples: Sequence[TrainingExample], config: AstuneConfig) -> list[Sample]:
        return preference_samples(examples)

    async def before_update(
        self, learner: Scorer, samples: Sequence[Sample]
    ) -> tuple[Sequence[Sample], dict[str, float]]:
        """Give the samples the advantages by which an update follows the loss. Samples of one example have one
        `episode_id`; good answers come with advantages of 1, bad ones of -1."""
        examples: dict[str, dict[bool, list[int]]] = {}
        for number, sample in enumerate(samples):
            examples.setdefault(sample.episode_id, {}).setdefault(sample.advantages[0] > 0, []).append(number)
        answers = await self.score(learner, samples)
        slopes, figures = await self.slopes(learner, samples, answers, list(examples.values()))
        weighed = [
            replace(
                sample,
                advantages=(-slope,) * len(sample.weights),
                weights=tuple(1.0 / len(examples) if weight else 0.0 for weight in sample.weights),
            )
            for sample, slope in zip(samples, slopes, strict=True)
        ]
        return weighed, figures

    async def score(self, learner: Scorer, samples: Sequence[Sample]) -> list[ScoredAnswer]:
        """Ask how likely each sample is under the policy, and under the reference if the loss needs one."""
        policy = await learner.logprobs(samples)
        before = await learner.logprobs(samples, reference=True) if self.needs_reference else policy
        return [ScoredAnswer(math.fsum(own), math.fsum(ref), len(own)) for own, ref in zip(policy, before, strict=True)]


def add_up(answers: Sequence[ScoredAnswer], numbers: Sequence[int]) -> ScoredAnswer:
    """Add up the answers with these numbers, which are the rows of one."""
    chosen = [answers[number] for number in numbers]
    total = math.fsum(each.logprob for each in chosen), math.fsum(each.reference for each in chosen)
    return ScoredAnswer(*total, sum(each.tokens for each in chosen))


def sigmoid(value: float) -> float:
    return 1.0 / (1.0 + math.exp(-value)) if value >= 0 else math.exp(value) / (1.0 + math.exp(value))
