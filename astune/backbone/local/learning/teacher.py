"""A teacher: a model whose log-probabilities of the policy's own tokens are learned from."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from tokenizers import Tokenizer

from astune.algorithm import reweighted
from astune.backbone.local.learning.batch import MicroBatch
from astune.backbone.local.learning.forward import predict
from astune.backbone.local.model.model import LoadedModel, load_model
from astune.clients.scoring import ScoringClient
from astune.config.chat_models import TeacherConfig
from astune.config.schema import AlgorithmConfig, ModelConfig
from astune.context_tracker.model_dir import resolve_model_dir
from astune.errors import ConfigError, ModelError, RolloutError, TrainingError
from astune.types import Sample

logger = logging.getLogger(__name__)

KEY = "astune.algorithm.teacher"


@dataclass(frozen=True)
class Weighed:
    """The `samples` of an update that a teacher has weighed, with weights for an update of their own, and those that
    are `left_out`. `logprob` gives the log-probability (e,) of every trained token of a micro-batch of `samples`."""

    samples: Sequence[Sample]
    logprob: Callable[[MicroBatch], torch.Tensor]
    left_out: Sequence[Sample] = ()


class Teacher(Protocol):
    async def weigh(self, samples: Sequence[Sample]) -> Weighed:
        """Raises TrainingError where nothing can be learned from any of the samples."""


def make_teacher(algorithm: AlgorithmConfig, student: LoadedModel) -> Teacher | None:
    """That of `astune.algorithm.teacher`. Raises ModelError for one that has other tokens, and ConfigError for an API
    that does not answer."""
    if algorithm.teacher is None:
        return None
    if isinstance(algorithm.teacher, str):
        return LocalTeacher(algorithm.teacher, student)
    return ApiTeacher(algorithm.teacher, algorithm, student.directory)


class LocalTeacher:
    """A model on the student's device and in its precision. Its log-probabilities are those at the temperature with
    which each token was sampled. Raises ModelError for one with another vocabulary, or one that needs another layout
    of batches."""

    def __init__(self, path: str, student: LoadedModel) -> None:
        dtype: Any = str(student.dtype).removeprefix("torch.")
        directory = str(resolve_model_dir(path, key=KEY))
        loaded = load_model(ModelConfig(path=directory, device=str(student.device), dtype=dtype))
        if _vocabulary(loaded.directory) != _vocabulary(student.directory):
            raise ModelError(
                f"{KEY}: the tokenizer in {loaded.directory} has other tokens than that in {student.directory}, so the "
                "teacher cannot weigh what the model says; expected a model of the same family"
            )
        if loaded.family.layout != student.family.layout:
            raise ModelError(
                f"{KEY}: the model in {loaded.directory} is computed in other batches than the one trained"
            )
        self._model = loaded.sampling_model.requires_grad_(False)

    async def weigh(self, samples: Sequence[Sample]) -> Weighed:
        return Weighed(samples, self._logprob)

    @torch.no_grad()
    def _logprob(self, batch: MicroBatch) -> torch.Tensor:
        return predict(self._model, batch).logprob


class ApiTeacher:
    """A model behind an API, whose log-probabilities are those at temperature 1. An episode of which it does not weigh
    every row is left out. Raises ModelError for one that has other tokens than the tokenizer in `directory`, and
    ConfigError where the API does not answer."""

    def __init__(self, config: TeacherConfig, algorithm: AlgorithmConfig, directory: Path) -> None:
        self._client = ScoringClient("teacher", config, key=KEY)
        self._most, self._aggregation = config.max_concurrent, algorithm.loss_aggregation
        tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))

        def encode(text: str) -> list[int]:
            ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
            return ids

        try:
            asyncio.run(self._client.check_vocabulary(encode, tokenizer.decode))
        except RolloutError as error:
            raise ConfigError(str(error)) from error

    async def weigh(self, samples: Sequence[Sample]) -> Weighed:
        slots = asyncio.Semaphore(self._most)

        async def one(sample: Sample) -> list[float] | RolloutError:
            async with slots:
                try:
                    return await self._logprobs(sample)
                except RolloutError as error:
                    return error

        found = list(zip(samples, await asyncio.gather(*map(one, samples)), strict=True))
        failed = {sample.episode_id: each for sample, each in found if isinstance(each, RolloutError)}
        rows = [
            each for sample, each in found if not isinstance(each, RolloutError) and sample.episode_id not in failed
        ]
        if not failed:
            return Weighed(samples, _by_row(rows))
        episodes, reason = {sample.episode_id for sample in samples}, next(iter(failed.values()))
        if not rows:
            raise TrainingError(f"the teacher weighed none of the {len(episodes)} episodes of an update: {reason}")
        logger.warning(
            "the teacher did not weigh %d of %d episodes, which are left out: %s", len(failed), len(episodes), reason
        )
        kept = reweighted(samples, episodes - set(failed), self._aggregation)
        return Weighed(kept, _by_row(rows), [sample for sample in samples if sample.episode_id in failed])

    async def _logprobs(self, sample: Sample) -> list[float]:
        """Of a sample's trained tokens, in the order of `MicroBatch`."""
        spans = [s for s, weight in zip(sample.timeline.spans, sample.weights, strict=True) if weight and len(s)]
        for span in spans:
            if span.temperature != 1:
                raise RolloutError(
                    f"{KEY}: the agent sampled at temperature {span.temperature:g}, and an API gives log-probabilities "
                    "at temperature 1; a teacher in a folder has those at any"
                )
        scores = await self._client.scores(list(sample.timeline.token_ids)[: max(span.stop for span in spans)])
        return [scores[place - 1].logprob for span in spans for place in range(span.start, span.stop)]


def _by_row(rows: Sequence[Sequence[float]]) -> Callable[[MicroBatch], torch.Tensor]:
    def logprob(batch: MicroBatch) -> torch.Tensor:
        values = [value for number in batch.samples for value in rows[number]]
        return torch.tensor(values, dtype=torch.float32, device=batch.sampled.device)

    return logprob


def _vocabulary(directory: Path) -> tuple[Any, Any]:
    tokenizer = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))
    return tokenizer["model"].get("vocab"), [(each["id"], each["content"]) for each in tokenizer["added_tokens"]]
