"""The memory of the sampler's cache: a long prompt, and a device that has no more."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

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
    plain, given = kv_cache.zeros, 0

    def zeros(*arguments: Any) -> torch.Tensor:
        nonlocal given
        given += 1
        if given > after:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return plain(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(kv_cache, "zeros", zeros)
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


def resident() -> int:
    """Bytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="only Linux says it there")
def test_short_conversations_take_no_memory_for_a_long_one_beside_them(model: Any) -> None:
    slots, dim, heads = 64, 128, 8
    cache = KVCache(slots, torch.float32, CPU)
    before = resident()
    for length in (100, 4000):  # the second grows what the first began
        cache.reserve(length)
        key = torch.ones(1, heads, 1, dim)
        for keys in cache.layer(0, key, key):
            keys[:, :, :100] = 1
            keys[5, :, :length] = 1
        cache.lengths[:] = 100
        cache.lengths[5] = length
    token = 2 * heads * dim * 4
    taken, whole = resident() - before, slots * cache.positions * token
    assert (63 * 100 + 4000) * token <= taken + 2**22 and taken < whole / 5
    del keys
    assert bool((cache.keys[0][5, :, :4000] == 1).all()) and bool((cache.values[0][:, :, :100] == 1).all())
    cache.clear()
    assert resident() - before < whole / 50 and not cache.positions


async def test_a_step_is_as_wide_as_the_conversations_that_take_part_in_it(model: Any) -> None:
    """A long one waits for its agent meanwhile, and its keys stay what they were."""
    cache = cache_with(model, texts_of(5, 9, 300))
    held = [store[layer][2, :, :300].clone() for store in (cache.keys, cache.values) for layer in store]
    widths: list[int] = []

    class Seen(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if "attention" in str(func):
                widths.append(args[1].shape[2])
            return func(*args, **(kwargs or {}))

    for order in ({0: 3, 1: 4}, {1: 4}):
        with torch.inference_mode(), Seen():  # type: ignore[no-untyped-call]
            cache.step(model, order)
    assert set(widths) == {10}
    now = [store[layer][2, :, :300] for store in (cache.keys, cache.values) for layer in store]
    assert all(torch.equal(one, other) for one, other in zip(now, held, strict=True))


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(1, 40), min_size=2, max_size=6), st.data())
def test_a_step_of_any_of_the_slots_is_that_of_each_alone(model: Any, lengths: list[int], data: st.DataObject) -> None:
    texts = texts_of(*lengths)
    running = sorted(data.draw(st.sets(st.integers(0, len(texts) - 1), min_size=1)))
    cache = cache_with(model, texts)
    with torch.inference_mode():
        together = cache.step(model, dict.fromkeys(running, 7))
        for slot, logits in zip(running, together, strict=True):
            alone = cache_with(model, [texts[slot]]).step(model, {0: 7})
            assert torch.allclose(logits, alone[0], atol=1e-4)
        for slot in set(range(len(texts))) - set(running):  # and then of those that did not take part
            alone = cache_with(model, [texts[slot]]).step(model, {0: 7})
            assert torch.allclose(cache.step(model, {slot: 7})[0], alone[0], atol=1e-4)
