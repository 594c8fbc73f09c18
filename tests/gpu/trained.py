"""A sampler and a learner on a device, and what they are to learn from."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from astune.backbone.local.learning.learner import LocalLearner
from astune.backbone.local.model.model import LoadedModel, load_model
from astune.backbone.local.sampling.sampler import Sampler
from astune.config.schema import AlgorithmConfig, ModelConfig, TrainerConfig
from astune.types import Generation, Sample, Sampling, Span, Timeline

RATE = 1e-3
CPU = torch.device("cpu")


@dataclass
class Trained:
    loaded: LoadedModel
    sampler: Sampler
    learner: LocalLearner

    def weights(self) -> torch.Tensor:
        return torch.cat([each.detach().flatten().double().cpu() for each in self.loaded.trainable()])


def trained(
    folder: Path,
    device: torch.device,
    dtype: str = "float32",
    *,
    model: dict[str, Any] | None = None,
    algorithm: dict[str, Any] | None = None,
    trainer: dict[str, Any] | None = None,
    beside: bool = False,
) -> Trained:
    """`beside`: rollouts go on while the model is trained."""
    torch.manual_seed(0)
    loaded = load_model(ModelConfig(path=str(folder), device=str(device), dtype=dtype, **(model or {})))
    if beside:
        loaded = loaded.with_copy()
    sampler = Sampler(
        loaded.sampling_model,
        slots=8,
        context_length=loaded.context_length,
        family=loaded.family,
        adapters=loaded.sampling_adapters,
    )
    learner = LocalLearner(
        loaded,
        sampler,
        AlgorithmConfig(**{"loss": "reinforce"} | (algorithm or {})),
        TrainerConfig(**{"micro_batch_tokens": 600} | (trainer or {})),
        beside=beside,
    )
    return Trained(loaded, sampler, learner)


def prompts(count: int, length: int = 60, vocabulary: int = 512) -> list[list[int]]:
    chance = random.Random(0)
    system = [chance.randrange(vocabulary) for _ in range(length // 2)]
    return [system + [chance.randrange(vocabulary) for _ in range(length // 2 + number)] for number in range(count)]


async def answers(sampler: Sampler, of: Sequence[list[int]], **sampling: Any) -> list[Generation]:
    calls = [sampler.generate(ids, Sampling(24, seed=number, **sampling)) for number, ids in enumerate(of)]
    return list(await asyncio.gather(*calls))


def samples_of(asked: Sequence[list[int]], given: Sequence[Generation]) -> list[Sample]:
    """Attempts of which every second one was good."""
    made = []
    for number, (prompt, answer) in enumerate(zip(asked, given, strict=True)):
        start, stop = len(prompt), len(prompt) + len(answer.output_ids)
        span = Span(0, start, stop, answer.policy_version, 1.0, True, list(answer.logprobs))
        line = Timeline("agent", [*prompt, *answer.output_ids], (span,))
        weight = 1 / (len(asked) * len(answer.output_ids))
        good = 1.0 - 2 * (number % 2)
        made.append(Sample(line, (good,), (weight,), f"{number // 4}", f"{number}", rewards=(good,)))
    return made


def made_samples(rows: int, length: int, shared: int = 0, vocabulary: int = 512) -> list[Sample]:
    """Random rows whose first `shared` tokens are equal; the second half of each is trained."""
    chance = random.Random(rows * length)
    begin = [chance.randrange(vocabulary) for _ in range(shared)]
    made = []
    for number in range(rows):
        tokens = begin + [chance.randrange(vocabulary) for _ in range(length - shared)]
        half = max(shared, length // 2)
        span = Span(0, half, length, 0, 1.0, True, [-6.0] * (length - half))
        weight = 1 / (rows * (length - half))
        line = Timeline("agent", tokens, (span,))
        good = 1.0 - 2 * (number % 2)
        made.append(Sample(line, (good,), (weight,), "task", f"{number}", rewards=(good,)))
    return made
