"""The trained tokens of a sample as columns: what every engine makes its batches of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from astune.errors import TrainingError
from astune.token_ids import TokenIds
from astune.types import Sample


class TrainedTokens(NamedTuple):
    """One entry per token with weight, all (e,), in the order of the tokens. `place` is its index in the timeline, at
    least 1, as something has to predict it; `sampled` its log-probability as recorded; `version` the policy's that
    sampled it."""

    place: np.ndarray
    target: np.ndarray
    sampled: np.ndarray
    advantage: np.ndarray
    weight: np.ndarray
    temperature: np.ndarray
    version: np.ndarray


def token_array(sample: Sample) -> np.ndarray:
    """The token ids of a sample's timeline, int32."""
    return np.frombuffer(TokenIds.of(sample.timeline.token_ids).pack(), np.int32)


def collect_trained(sample: Sample) -> TrainedTokens:
    """Collect the trained tokens of a sample. Raises TrainingError for one that nothing predicts."""
    chosen = [
        (span, advantage, weight)
        for span, advantage, weight in zip(sample.timeline.spans, sample.advantages, sample.weights, strict=True)
        if weight and len(span)
    ]
    if not chosen:
        raise ValueError(f"nothing of the sample of episode {sample.episode_id} has weight")
    lengths = [len(span) for span, _, _ in chosen]
    if chosen[0][0].start == 0:
        turn = chosen[0][0].turn
        raise TrainingError(f"turn {turn} of {sample.episode_id} has an empty prompt: nothing predicts it")
    place = np.concatenate([np.arange(span.start, span.stop) for span, _, _ in chosen])

    def column(values: list[float]) -> np.ndarray:
        return np.repeat(np.asarray(values), lengths)

    return TrainedTokens(
        place=place,
        target=token_array(sample)[place],
        sampled=np.concatenate([np.asarray(span.logprobs) for span, _, _ in chosen]),
        advantage=column([float(advantage) for _, advantage, _ in chosen]),
        weight=column([float(weight) for _, _, weight in chosen]),
        temperature=column([float(span.temperature) for span, _, _ in chosen]),
        version=np.repeat(np.asarray([span.policy_version for span, _, _ in chosen]), lengths),
    )


def join(parts: Sequence[TrainedTokens]) -> TrainedTokens:
    """Join the entries of several samples, one sample after another."""
    return TrainedTokens(*(np.concatenate(column) for column in zip(*parts, strict=True)))
