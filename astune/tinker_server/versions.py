"""The weights that are sampled. Each version has a sampler of its own; the ones used last are in memory."""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from astune.backbone.local.model.family import require_tree
from astune.backbone.local.model.model import longest_context
from astune.backbone.local.sampling.sampler import Sampler
from astune.tinker_server.lora import read_sampled
from astune.tinker_server.rows import TargetRow, logits_of, row_batches, target_logprobs
from astune.types import Generation, Sampling

EMPTY_TOKEN, EMPTY_LOGPROB = 0, -99999.0
"""Fill the places of a prompt's most likely tokens that have none, as the SDK's `TopkPromptLogprobs` says."""


@dataclass(frozen=True)
class Version:
    """Weights in a folder. `number` tells apart what stood in the same folder at different times."""

    folder: Path
    number: str


class Versions:
    """At most `most` versions in memory, with their caches; others are read again when somebody samples them. The base
    of adapters is in `base`.

    `reader` reads one after another, as transformers must.
    """

    def __init__(
        self,
        *,
        device: torch.device,
        dtype: torch.dtype,
        slots: int,
        most: int,
        decode: Callable[[Sequence[int]], str],
        reader: Executor,
        base: Path,
    ) -> None:
        self._device, self._dtype = device, dtype
        self._slots, self._most = slots, most
        self._decode, self._reader, self._base = decode, reader, base
        self._samplers: OrderedDict[Version, asyncio.Task[Sampler]] = OrderedDict()

    async def sampler(self, version: Version) -> Sampler:
        """Raises `ModelError` if the weights cannot be read."""
        if version not in self._samplers:
            self._samplers[version] = asyncio.create_task(self._read(version))
        self._samplers.move_to_end(version)
        while len(self._samplers) > self._most:
            self._samplers.popitem(last=False)
        try:
            return await asyncio.shield(self._samplers[version])
        except Exception:
            self._samplers.pop(version, None)
            raise

    def holds(self, version: Version) -> bool:
        return version in self._samplers

    async def _read(self, version: Version) -> Sampler:
        model = await asyncio.get_running_loop().run_in_executor(self._reader, self._model, version.folder)
        return Sampler(model, slots=self._slots, context_length=longest_context(model), decode=self._decode)

    def _model(self, folder: Path) -> Any:
        return require_tree(read_sampled(self._base, folder, self._device, self._dtype).requires_grad_(False))


async def generate(sampler: Sampler, prompt: Sequence[int], sampling: Sampling, samples: int) -> list[Generation]:
    """So many answers; the seed of the first is that of `sampling`, which fixes those of the others."""
    seeds: list[int | None] = [sampling.seed] * samples
    if sampling.seed is not None:
        further = random.Random(sampling.seed)
        seeds[1:] = [further.getrandbits(64) for _ in seeds[1:]]
    return await asyncio.gather(*(sampler.generate(prompt, replace(sampling, seed=seed)) for seed in seeds))


@dataclass(frozen=True)
class PromptScores:
    """`logprobs[i]` (n,) is that of token i after those before it, not a number for the first. `top_ids` and
    `top_logprobs` (n, k) are the most likely tokens in its place."""

    logprobs: np.ndarray
    top_ids: np.ndarray
    top_logprobs: np.ndarray


@torch.inference_mode()
def score_prompt(
    model: Any, prompt: Sequence[int], temperature: float, top: int, last: int | None = None
) -> PromptScores:
    """Under softmax(logits / temperature), or softmax(logits) for temperature 0. With `last` only so many tokens at the
    end of the prompt are scored."""
    ids = np.asarray(prompt, np.int64)
    logprobs = np.full(len(ids), np.nan, np.float32)
    top_ids = np.full((len(ids), top), EMPTY_TOKEN, np.int32)
    top_logprobs = np.full((len(ids), top), EMPTY_LOGPROB, np.float32)
    if len(ids) > 1:
        row = TargetRow(ids[:-1], ids[1:], np.zeros(len(ids) - 1, np.float32))
        (batch,) = row_batches([row], len(ids), next(model.parameters()).device)
        logits = logits_of(model, batch, temperature or 1.0)
        logprobs[1:] = target_logprobs(logits, batch).cpu().numpy()
        if top:
            values, indices = torch.log_softmax(logits, dim=-1).topk(top)
            top_ids[1:], top_logprobs[1:] = indices.cpu().numpy(), values.cpu().numpy()
    if last is not None:
        unasked = slice(0, len(ids) - last)
        logprobs[unasked], top_ids[unasked], top_logprobs[unasked] = np.nan, EMPTY_TOKEN, EMPTY_LOGPROB
    return PromptScores(logprobs, top_ids, top_logprobs)
