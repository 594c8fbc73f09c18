"""A teacher behind an API, and the check that a teacher has the tokens of the model that is trained."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from astune.algorithm import reweigh
from astune.clients.scoring import ScoringClient
from astune.config.chat_models import TeacherConfig
from astune.config.schema import AlgorithmConfig
from astune.errors import ConfigError, ModelError, RolloutError, TrainingError
from astune.types import Sample

logger = logging.getLogger(__name__)

TEACHER = "astune.algorithm.teacher"


@dataclass(frozen=True)
class WeighedRows:
    """The `samples` of an update that a teacher has weighed, with weights for an update of their own, and the samples
    that are `left_out`. `logprobs` has the values of the trained tokens of each sample, in their order."""

    samples: Sequence[Sample]
    logprobs: Sequence[Sequence[float]]
    left_out: Sequence[Sample] = ()


class ApiTeacher:
    """A model behind an API, which gives log-probabilities at temperature 1. An episode is left out where a row of it
    was not weighed. Raises ModelError for a model that has other tokens than the tokenizer in `directory`, and
    ConfigError where the API does not answer."""

    def __init__(self, config: TeacherConfig, algorithm: AlgorithmConfig, directory: Path) -> None:
        self._client = ScoringClient("teacher", config, key=TEACHER)
        self._most, self._aggregation = config.max_concurrent, algorithm.loss_aggregation
        tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))

        def encode(text: str) -> list[int]:
            ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
            return ids

        try:
            asyncio.run(self._client.check_vocabulary(encode, tokenizer.decode))
        except RolloutError as error:
            raise ConfigError(str(error)) from error

    async def weigh(self, samples: Sequence[Sample]) -> WeighedRows:
        """Raises TrainingError where nothing can be learned from any of the samples."""
        slots = asyncio.Semaphore(self._most)

        async def one(sample: Sample) -> list[float] | RolloutError:
            async with slots:
                try:
                    return await self._ask_logprobs(sample)
                except RolloutError as error:
                    return error

        found = list(zip(samples, await asyncio.gather(*map(one, samples)), strict=True))
        failed = {sample.episode_id: each for sample, each in found if isinstance(each, RolloutError)}
        rows = [
            each for sample, each in found if not isinstance(each, RolloutError) and sample.episode_id not in failed
        ]
        if not failed:
            return WeighedRows(samples, rows)
        episodes, reason = {sample.episode_id for sample in samples}, next(iter(failed.values()))
        if not rows:
            raise TrainingError(f"the teacher weighed none of the {len(episodes)} episodes of an update: {reason}")
        logger.warning(
            "the teacher did not weigh %d of %d episodes, which are left out: %s", len(failed), len(episodes), reason
        )
        kept = reweigh(samples, episodes - set(failed), self._aggregation)
        return WeighedRows(kept, rows, [sample for sample in samples if sample.episode_id in failed])

    async def _ask_logprobs(self, sample: Sample) -> list[float]:
        """Ask for the log-probabilities of a sample's trained tokens, in their order."""
        spans = [s for s, weight in zip(sample.timeline.spans, sample.weights, strict=True) if weight and len(s)]
        for span in spans:
            if span.temperature != 1:
                raise RolloutError(
                    f"{TEACHER}: the agent sampled at temperature {span.temperature:g}, and an API gives "
                    "log-probabilities at temperature 1; a teacher in a folder has those at any"
                )
        scores = await self._client.scores(list(sample.timeline.token_ids)[: max(span.stop for span in spans)])
        return [scores[place - 1].logprob for span in spans for place in range(span.start, span.stop)]


def require_same_tokens(teacher: Path, student: Path) -> None:
    """Raises ModelError where the tokenizers in two model folders have other tokens."""
    if _read_vocabulary(teacher) != _read_vocabulary(student):
        raise ModelError(
            f"{TEACHER}: the tokenizer in {teacher} has other tokens than that in {student}, so the teacher cannot "
            "weigh what the model says; expected a model of the same family"
        )


def _read_vocabulary(directory: Path) -> tuple[Any, Any]:
    tokenizer = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))
    return tokenizer["model"].get("vocab"), [(each["id"], each["content"]) for each in tokenizer["added_tokens"]]
