"""The memory of the sampler's cache: a long prompt, and a device that has no more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from astune.backbone.local.sampling import kv_cache
from astune.backbone.local.sampling.kv_cache import KVCache
from astune.backbone.local.sampling.sampler import Sampler
from astune.errors import PolicyError
from astune.types import Sampling
from tests.backbone.local.test_forward import Largest

CPU = torch.device("cpu")


def texts_of(*lengths: int) -> list[np.ndarray]:
    return [np.random.default_rng(number).integers(0, 64, length) for number, length in enumerate(sorted(lengths))]


def cache_with(model: Any, texts: list[np.ndarray]) -> KVCache:
    cache = KVCache(len(texts), torch.float32, CPU)
    with torch.inference_mode():
        cache.extend(model, range(len(texts)), texts)
    return cache


@pytest.mark.parametrize("lengths", [(100,), (3, 40, 100), (7, 7, 7, 100, 100)])
@pytest.mark.parametrize("limits", [(10, 2**25), (2**15, 60), (2**15, 500), (1, 1)])
def test_a_prompt_in_pieces_leaves_what_one_piece_leaves(
    model: Any, lengths: tuple[int, ...], limits: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = texts_of(*lengths)
    whole = cache_with(model, texts)
    monkeypatch.setattr(kv_cache, "TOKENS_AT_ONCE", limits[0])
    monkeypatch.setattr(kv_cache, "SCORES_AT_ONCE", limits[1])
    parts = cache_with(model, texts)
    assert parts.lengths.tolist() == whole.lengths.tolist() == [len(text) for text in texts]
    for slot, text in enumerate(texts):
        assert parts.tokens[slot, : len(text)].tolist() == text.tolist()
        for found, expected in ((parts.keys, whole.keys), (parts.values, whole.values)):
            for layer in expected:
                assert torch.allclose(
                    found[layer][slot, :, : len(text)], expected[layer][slot, :, : len(text)], atol=1e-5
                )


def test_no_tensor_grows_with_the_square_of_a_prompt(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_cache, "SCORES_AT_ONCE", 2**12)
    largest = []
    for length in (128, 256, 512):
        with Largest() as seen:
            cache_with(model, texts_of(length))
        largest.append(seen.numbers)
    assert max(largest) <= max(2**12 * 4, 512 * 64)  # scores of all heads at once; what a layer says of each token


@contextmanager
def full_device(monkeypatch: pytest.MonkeyPatch, after: int) -> Iterator[None]:
    """A device that gives memory for so many more tensors of the cache."""
    plain, given = torch.Tensor.new_zeros, 0

    def new_zeros(self: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
        nonlocal given
        given += 1
        if given > after:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return plain(self, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "new_zeros", new_zeros)
        yield


@pytest.mark.fault(
    "Agents and the engine",
    "the device has no memory for a longer cache",
    "the calls under way fail with that reason; the next ones are answered as if nothing had been",
)
@pytest.mark.parametrize("after", [0, 1, 3])
async def test_a_cache_that_could_not_grow_is_used_again(
    model: Any, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler, sampling = Sampler(model, slots=2, context_length=512), Sampling(max_tokens=4, seed=1)
    await sampler.generate([1, 2, 3], sampling)
    long = [number % 64 for number in range(300)]
    with full_device(monkeypatch, after), pytest.raises(PolicyError, match="out of memory"):
        await sampler.generate(long, sampling)
    fresh = Sampler(model, slots=2, context_length=512)
    for prompt in ([1, 2, 3], long):
        found, expected = await sampler.generate(prompt, sampling), await fresh.generate(prompt, sampling)
        assert found.output_ids == expected.output_ids
        assert found.logprobs == pytest.approx(expected.logprobs, abs=1e-5)
