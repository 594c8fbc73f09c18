"""Examples as samples: every answer in them has advantage 1, so that the loss is the negative log-likelihood."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from astune.algorithm.aggregation import Entry, LossAggregation, token_weights
from astune.examples.example import TrainingExample
from astune.types import Sample


def imitation_samples(
    examples: Sequence[TrainingExample], aggregation: LossAggregation = "episode_mean", max_tokens: int = 1
) -> list[Sample]:
    """Make one sample per row. Weights are those of an episode (`astune.algorithm.loss_aggregation`), an example being
    the episode and its place in the file the task. The ids of the samples' episodes differ by example."""
    entries = [
        Entry(
            example.place,
            number,
            (number, row, span.turn),
            len(span),
            float(span.trainable and not span.shared),
            timeline.agent,
        )
        for number, example in enumerate(examples)
        for row, timeline in enumerate(example.rows)
        for span in timeline.spans
    ]
    weights = iter(token_weights(entries, aggregation, max_tokens))
    samples = []
    for number, example in enumerate(examples):
        for timeline in example.rows:
            row = tuple(next(weights) for _ in timeline.spans)
            samples.append(Sample(timeline, (1.0,) * len(row), row, example.place, f"{example.place}/{number}"))
    return samples


def preference_samples(examples: Sequence[TrainingExample]) -> list[Sample]:
    """Make one sample per row, with advantage 1 if it is of a good answer and -1 if of a bad one. Weights say what is
    trained and no more: a loss over whole answers gives every token its own."""
    return [
        Sample(
            timeline,
            (1.0 if liked else -1.0,) * len(timeline.spans),
            tuple(float(span.trainable and not span.shared) for span in timeline.spans),
            example.place,
            f"{example.place}/{number}",
        )
        for number, example in enumerate(examples)
        for timeline, liked in zip(example.rows, example.liked, strict=True)
    ]


def token_weights_of(sample: Sample) -> list[float]:
    """The weights of a sample's tokens with weight, in their order."""
    spans = zip(sample.timeline.spans, sample.weights, strict=True)
    return [weight for span, weight in spans if weight for _ in range(len(span))]


def figures(samples: Sequence[Sample], skipped: Collection[Sample] = (), *, weighted: bool = True) -> dict[str, float]:
    """The figures of a step for the log. `skipped` are samples of updates that were thrown away. `weighted` is False
    where the loss has weights of its own, as with `preference_samples`."""
    lost = sum(sample.trained_tokens for sample in skipped)
    terms = sum(sample.trained_tokens for sample in samples)
    found: dict[str, float] = {
        "examples/total": len({sample.episode_id for sample in samples}),
        "turns/total": sum(bool(weight) for sample in samples for weight in sample.weights),
        "timelines/total": len(samples),
        "tokens/trained": terms - lost,
        "tokens/loss_terms": terms - lost,
        "tokens/flattened": sum(len(sample.timeline.token_ids) for sample in samples),
    }
    if weighted:
        found["weight_sum"] = math.fsum(sample.weight_sum for sample in samples) if terms > lost else 0.0
    if lost:
        found["tokens/dropped_skipped_update"] = lost
    return {name: float(value) for name, value in found.items()}
