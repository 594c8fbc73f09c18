"""A teacher: a model whose log-probabilities of the policy's own tokens are learned from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch

from astune.backbone.local.learning.batch import MicroBatch
from astune.backbone.local.learning.reference import score
from astune.backbone.local.model.model import LoadedModel, load_model
from astune.backbone.losses.teacher import TEACHER, ApiTeacher, require_same_tokens
from astune.config.schema import AlgorithmConfig, ModelConfig
from astune.context_tracker.model_dir import resolve_model_dir
from astune.errors import ModelError
from astune.types import Sample


@dataclass(frozen=True)
class Weighed:
    """The `samples` of an update that a teacher has weighed, with weights for an update of their own, and the samples
    that are `left_out`. `logprob` gives the log-probability (e,) of every trained token of a micro-batch of
    `samples`."""

    samples: Sequence[Sample]
    logprob: Callable[[MicroBatch], torch.Tensor]
    left_out: Sequence[Sample] = ()


class Teacher(Protocol):
    async def weigh(self, samples: Sequence[Sample]) -> Weighed:
        """Raises TrainingError where nothing can be learned from any of the samples."""


def make_teacher(algorithm: AlgorithmConfig, student: LoadedModel) -> Teacher | None:
    """Load the teacher of `astune.algorithm.teacher`. Raises ModelError for one that has other tokens, and ConfigError
    for an API that does not answer."""
    if algorithm.teacher is None:
        return None
    if isinstance(algorithm.teacher, str):
        return LocalTeacher(algorithm.teacher, student)
    return RemoteTeacher(ApiTeacher(algorithm.teacher, algorithm, student.directory))


class LocalTeacher:
    """A model on the student's device and in its precision. Its log-probabilities are those at the temperature with
    which each token was sampled. Raises ModelError for one with another vocabulary, or one that needs another layout
    of batches."""

    def __init__(self, path: str, student: LoadedModel) -> None:
        dtype: Any = str(student.dtype).removeprefix("torch.")
        directory = str(resolve_model_dir(path, key=TEACHER))
        loaded = load_model(ModelConfig(path=directory, device=str(student.device), dtype=dtype))
        require_same_tokens(loaded.directory, student.directory)
        if loaded.family.layout != student.family.layout:
            raise ModelError(
                f"{TEACHER}: the model in {loaded.directory} is computed in other batches than the one trained"
            )
        self._logprob = partial(score, loaded.sampling_model.requires_grad_(False))

    async def weigh(self, samples: Sequence[Sample]) -> Weighed:
        return Weighed(samples, self._logprob)


class RemoteTeacher:
    """A model behind an API."""

    def __init__(self, api: ApiTeacher) -> None:
        self._api = api

    async def weigh(self, samples: Sequence[Sample]) -> Weighed:
        weighed = await self._api.weigh(samples)

        def logprob(batch: MicroBatch) -> torch.Tensor:
            values = [value for number in batch.samples for value in weighed.logprobs[number]]
            return torch.tensor(values, dtype=torch.float32, device=batch.sampled.device)

        return Weighed(weighed.samples, logprob, weighed.left_out)
