"""Take one training step, measure what it does to the probability of every token it trains, and take it back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from astune.backbone.local.learning.learner import LocalLearner
from astune.backbone.local.model.model import LoadedModel
from astune.backbone.local.sampling.sampler import Sampler
from astune.config.schema import AstuneConfig
from astune.training.schedule import learning_rate
from astune.types import Sample, Update


@dataclass(frozen=True)
class SpanUpdate:
    """One span under an update: the logprob of each of its tokens when it was sampled (what `Span.logprobs` says),
    under the learner's weights before the update, and after it. `loss` is what the span adds to the loss."""

    sampled: tuple[float, ...]
    before: tuple[float, ...]
    after: tuple[float, ...]
    loss: float

    @property
    def changes(self) -> tuple[float, ...]:
        """The change of each logprob by the update."""
        return tuple(after - before for before, after in zip(self.before, self.after, strict=True))


@dataclass(frozen=True)
class UpdateInspection:
    """`metrics` are the learner's, empty if there was nothing to learn from. `samples[i][j]` is span j of sample i,
    None where it carries no weight; the losses of all spans sum to `metrics["loss"]`. `skipped` says that the gradient
    was not finite, so that nothing changed."""

    metrics: Mapping[str, float]
    samples: tuple[tuple[SpanUpdate | None, ...], ...]
    learning_rate: float
    """`astune.trainer.learning_rate`, which a warm-up has not reached yet; the step's own is among the metrics."""
    max_grad_norm: float
    """A gradient of a larger norm was scaled down to it."""
    skipped: bool = False


class UpdateInspector:
    """Takes the first step of a training run over some samples, and takes it back.

        inspection = await UpdateInspector(loaded, sampler, config).inspect(samples)

    Loss, clipping, optimizer and learning rate (with its warm-up) are those of `LocalLearner`. Logprobs are computed
    in the precision of training. No answer may be under way meanwhile.
    """

    def __init__(self, loaded: LoadedModel, sampler: Sampler, config: AstuneConfig) -> None:
        self._loaded, self._sampler = loaded, sampler
        self._algorithm, self._trainer = config.algorithm, config.trainer

    async def inspect(self, samples: Sequence[Sample]) -> UpdateInspection:
        """One optimizer step over `samples`, which together make one update. Afterwards, whatever happened, the
        weights are bit for bit what they were; the sampler's copy and its cache are never touched."""
        trainer = self._trainer
        update = Update({})
        spans: list[tuple[SpanUpdate | None, ...]] = []
        if samples:
            with _take_back(self._loaded.trainable()):
                learner = LocalLearner(self._loaded, self._sampler, self._algorithm, trainer)
                before = self._score(learner, samples)
                update = await learner.update(samples, learning_rate(trainer, 0, total_updates=1))
                after = self._score(learner, samples)
            spans = [_pair_updates(*each) for each in zip(samples, before, after, strict=True)]
        return UpdateInspection(
            update.metrics, tuple(spans), trainer.learning_rate, trainer.max_grad_norm, update.skipped
        )

    def _score(self, learner: LocalLearner, samples: Sequence[Sample]) -> list[list[_Score | None]]:
        """Per sample and span, under the weights as they are."""
        scores: list[list[_Score | None]] = [[] for _ in samples]
        for batch in learner.batches(samples):
            with torch.no_grad(), self._loaded.training():
                objective = learner.objective(batch)
            losses, logprobs = iter(objective.loss.tolist()), iter(objective.logprob.tolist())
            for number in batch.samples:
                sample = samples[number]
                for span, weight in zip(sample.timeline.spans, sample.weights, strict=True):
                    score = _Score.next(len(span), logprobs, losses) if weight else None
                    scores[number].append(score)
        return scores


@dataclass(frozen=True)
class _Score:
    logprobs: tuple[float, ...]
    loss: float

    @classmethod
    def next(cls, tokens: int, logprobs: Iterator[float], losses: Iterator[float]) -> _Score:
        """Take the values of the next span, of so many tokens."""
        return cls(tuple(next(logprobs) for _ in range(tokens)), sum(next(losses) for _ in range(tokens)))


def _pair_updates(
    sample: Sample, before: Sequence[_Score | None], after: Sequence[_Score | None]
) -> tuple[SpanUpdate | None, ...]:
    return tuple(
        SpanUpdate(tuple(span.logprobs), old.logprobs, new.logprobs, old.loss) if old and new else None
        for span, old, new in zip(sample.timeline.spans, before, after, strict=True)
    )


@contextmanager
def _take_back(parameters: Sequence[torch.nn.Parameter]) -> Iterator[None]:
    """Put every one back at the end."""
    kept = [parameter.detach().clone() for parameter in parameters]
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, value in zip(parameters, kept, strict=True):
                parameter.copy_(value)
