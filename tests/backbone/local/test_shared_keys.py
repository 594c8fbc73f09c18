"""Conversations that begin alike: their common keys are read once, and what is sampled is what each alone gives."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from astune.backbone.local.model import attention
from astune.backbone.local.sampling import shared_keys
from astune.backbone.local.sampling.kv_cache import KVCache
from astune.backbone.local.sampling.sampler import Sampler
from astune.backbone.local.sampling.shared_keys import PrefixGroup, find_groups
from astune.backbone.local.sampling.slots import Slots
from astune.types import Sampling

CPU = torch.device("cpu")
SYSTEM = [number * 7 % 60 for number in range(40)]


def slots_with(texts: Sequence[Sequence[int]], owners: Sequence[str] | None = None) -> Slots:
    held = Slots(len(texts))
    held.widen(max(map(len, texts)) + 8)
    for slot, text in enumerate(texts):
        held.append(slot, np.array(text, np.int64))
    if owners is not None:
        held.owners[:] = owners
    return held


def cache_with(model: Any, texts: Sequence[Sequence[int]]) -> KVCache:
    cache = KVCache(len(texts), torch.float32, CPU)
    for slot in sorted(range(len(texts)), key=lambda slot: len(texts[slot])):
        with torch.inference_mode():
            cache.extend(model, [slot], [np.array(texts[slot], np.int64)])
    return cache


class Reads(TorchDispatchMode):
    """Counts the places of keys that attention reads in all rows, and how often it is called."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.places = self.calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "attention" in str(func):
            self.places += args[1].shape[0] * args[1].shape[2]
            self.calls += 1
        return func(*args, **(kwargs or {}))


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention is one kernel on every processor, and can be counted."""
    monkeypatch.setattr(attention, "is_of_amd", lambda: False)


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Groups are used however little they save."""
    monkeypatch.setattr(shared_keys, "LEAST_SHARED", 2)
    monkeypatch.setattr(shared_keys, "LEAST_SAVED", -(2**40))
    monkeypatch.setattr(shared_keys, "WORTH", 1e9)
    yield


def test_groups_are_those_that_save_most() -> None:
    system = list(range(100))
    attempts = [[*system, *[task] * 60, answer] for task in (7, 8) for answer in (1, 2, 3)]
    assert find_groups(slots_with(attempts), range(6)) == [PrefixGroup((0, 1, 2), 160), PrefixGroup((3, 4, 5), 160)]
    tasks = [[*system, task, task] for task in range(6)]
    assert find_groups(slots_with(tasks), range(6)) == [PrefixGroup((0, 1, 2, 3, 4, 5), 100)]


def test_who_shares_nothing_has_the_length_of_the_shortest_group_or_its_own() -> None:
    system = list(range(100))
    held = slots_with([[*system, 1], [7] * 200, [*system, 2], [8] * 50])
    groups = {group.slots: group.length for group in find_groups(held, range(4))}
    assert groups == {(0, 2): 100, (1,): 100, (3,): 50}
    assert find_groups(held, []) == []
    assert [group.length for group in find_groups(slots_with([[1] * 50, [2] * 50]), range(2))] == [0, 0]


def test_adapters_share_nothing() -> None:
    text = list(range(100))
    groups = find_groups(slots_with([text] * 4, ["a", "b", "a", "b"]), range(4))
    assert sorted(group.slots for group in groups) == [(0, 2), (1, 3)]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=6), min_size=1, max_size=7))
def test_no_groups_of_all_that_begin_alike_save_more(texts: list[list[int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared_keys, "LEAST_SHARED", 1)
        found = find_groups(slots_with(texts), range(len(texts)))

    def most(beginning: list[int]) -> int:
        """Saved among those with this beginning, as one group or divided by the next token."""
        alike = [text for text in texts if text[: len(beginning)] == beginning]
        divided = sum(most([*beginning, token]) for token in (0, 1)) if alike else 0
        return max(0, (len(alike) - 1) * len(beginning), divided)

    assert sorted(slot for group in found for slot in group.slots) == list(range(len(texts)))
    assert all(
        texts[slot][: group.length] == texts[group.slots[0]][: group.length] for group in found for slot in group.slots
    )
    assert sum((len(group.slots) - 1) * group.length for group in found) >= most([])


def test_many_conversations_each_longer_than_the_last_are_divided() -> None:
    held = slots_with([[1] * (40 + slot) + [2] for slot in range(1500)])
    groups = find_groups(held, range(1500))
    assert sorted(slot for group in groups for slot in group.slots) == list(range(1500))
    assert all(
        (held.tokens[one, : group.length] == held.tokens[other, : group.length]).all()
        for group in groups
        for one, other in pairwise(group.slots)
    )


def test_what_a_group_has_in_common_is_read_once(model: Any) -> None:
    prompts = [[number * factor % 60 for number in range(400)] for factor in (7, 11)]
    texts = [[*prompt, answer, answer] for prompt in prompts for answer in range(32)]
    cache = cache_with(model, texts)
    pending = dict.fromkeys(range(64), 5)
    with torch.inference_mode(), Reads() as reads:
        together = cache.step(model, pending)
    layers = len(cache.keys)
    assert reads.calls == 2 * layers and reads.places == layers * (2 * 400 + 64 * 3)
    for slot in (0, 31, 32, 63):
        with torch.inference_mode():
            alone = cache_with(model, [texts[slot]]).step(model, {0: 5})
        assert torch.allclose(together[slot], alone[0], atol=1e-4)


def test_where_little_is_saved_each_reads_its_own(model: Any, fused: None) -> None:
    for texts in ([[*SYSTEM, slot] for slot in range(3)], [[slot, *SYSTEM * 20] for slot in range(8)]):
        cache = cache_with(model, texts)
        with torch.inference_mode(), Reads() as reads:
            cache.step(model, dict.fromkeys(range(len(texts)), 5))
        assert reads.places == len(cache.keys) * len(texts) * (len(texts[0]) + 1)


def test_a_kept_slot_that_failed_is_left_alone_until_the_weights_change(model: Any, eager: None, fused: None) -> None:
    texts = [[*SYSTEM, slot] for slot in range(4)]
    cache = cache_with(model, texts)

    def calls() -> int:
        with torch.inference_mode(), Reads() as reads:
            cache.step(model, dict.fromkeys(range(4), 5))
        return reads.calls // len(cache.keys)

    assert calls() == 2
    cache.wipe(2)
    with torch.inference_mode():
        cache.extend(model, [2], [np.array(texts[2])])
    assert calls() == 1
    cache.clear()
    for slot, text in enumerate(texts):
        with torch.inference_mode():
            cache.extend(model, [slot], [np.array(text)])
    assert calls() == 2


@pytest.mark.parametrize(
    "text",
    [
        [*SYSTEM[:10], 60, *SYSTEM[11:], 1],  # another conversation, as long
        SYSTEM[:5],  # one that was cut back, of which nothing was written anew
        [*SYSTEM, 9, 9, 9],  # one that begins like the group
    ],
)
def test_a_slot_that_holds_something_else_now_has_its_own_keys(model: Any, eager: None, text: list[int]) -> None:
    cache = cache_with(model, [[*SYSTEM, slot] for slot in range(4)])
    with torch.inference_mode():
        cache.step(model, dict.fromkeys(range(4), 5))
        cache.lengths[1] = len(text) if text == SYSTEM[: len(text)] else 0
        if not cache.lengths[1]:
            cache.extend(model, [1], [np.array(text)])
        found = cache.step(model, dict.fromkeys(range(4), 5))
        assert torch.allclose(found[1], cache_with(model, [text]).step(model, {0: 5})[0], atol=1e-4)
        assert torch.allclose(found[2], cache_with(model, [[*SYSTEM, 2]]).step(model, {0: 5})[0], atol=1e-4)


def test_a_slot_of_another_adapter_has_its_own_keys(model: Any, eager: None, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = cache_with(model, [[*SYSTEM, slot] for slot in range(4)])
    with torch.inference_mode():
        cache.step(model, dict.fromkeys(range(4), 5))
        cache.owners[1] = "another"
        for store in (*cache.keys.values(), *cache.values.values()):
            store[1] *= -1
        found = cache.step(model, dict.fromkeys(range(4), 5))
        monkeypatch.setattr(shared_keys, "LEAST_SAVED", 2**40)
        assert torch.allclose(found, cache.step(model, dict.fromkeys(range(4), 5)), atol=1e-4)


PIECES = (SYSTEM[:20], SYSTEM, [*SYSTEM, 1, 2, 3, 4], [*SYSTEM, 1, 2, 9, 9, 9], [5] * 30)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_whatever_slots_do_logits_are_those_of_each_alone(model: Any, eager: None, data: st.DataObject) -> None:
    """Conversations go on, are cut back, replaced, copied and wiped, and any of them take part in a step."""
    slots, token = 5, st.integers(0, 63)
    cache = KVCache(slots, torch.float32, CPU)
    for _ in range(data.draw(st.integers(2, 5))):
        for slot in range(slots):
            act = data.draw(st.sampled_from(["begin", "begin", "go on", "cut", "copy", "wipe", "rest"]))
            held = int(cache.lengths[slot])
            if act == "copy":
                source = data.draw(st.integers(0, slots - 1))
                if source != slot and cache.lengths[source]:
                    length = data.draw(st.integers(1, int(cache.lengths[source])))
                    with torch.inference_mode():
                        cache.copy_prefix(source, slot, length)
            elif act == "cut":
                cache.lengths[slot] = data.draw(st.integers(0, held))
            elif act == "wipe" and cache.keys:
                cache.wipe(slot)
            elif act in ("begin", "go on"):
                text = [*data.draw(st.sampled_from(PIECES)), *data.draw(st.lists(token, max_size=3))]
                cache.lengths[slot] = 0 if act == "begin" else held
                with torch.inference_mode():
                    cache.extend(model, [slot], [np.array(text, np.int64)])
        running = sorted(data.draw(st.sets(st.integers(0, slots - 1), min_size=1)))
        pending = {slot: data.draw(token) for slot in running}
        texts = {slot: cache.tokens[slot, : cache.lengths[slot]].tolist() for slot in running}
        with torch.inference_mode():
            logits = cache.step(model, pending)
        cache.append_each(running, list(pending.values()))
        for slot, found in zip(running, logits, strict=True):
            own = KVCache(1, torch.float32, CPU)
            with torch.inference_mode():
                if texts[slot]:
                    own.extend(model, [0], [np.array(texts[slot], np.int64)])
                alone = own.step(model, {0: pending[slot]})[0]
            assert torch.allclose(found, alone, atol=1e-4)


async def test_a_group_of_answers_is_what_each_of_them_is_alone(model: Any, eager: None) -> None:
    sampler = Sampler(model, slots=4, context_length=256)
    fresh = [Sampler(model, slots=1, context_length=256) for _ in range(4)]
    for _ in range(2):
        for task in ([*SYSTEM, 3], [*SYSTEM, 4, 4]):
            asked = [Sampling(max_tokens=6, seed=seed) for seed in range(4)]
            together = await asyncio.gather(*(sampler.generate(task, sampling) for sampling in asked))
            for own, sampling, answer in zip(fresh, asked, together, strict=True):
                alone = await own.generate(task, sampling)
                assert answer.output_ids == alone.output_ids
                assert answer.logprobs == pytest.approx(alone.logprobs, abs=1e-4)
        sampler.publish()


def test_copies_that_found_no_memory_are_made_again(model: Any, eager: None, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = cache_with(model, [[*SYSTEM, slot] for slot in range(4)])
    plain, made = shared_keys.PrefixGroups._copy, 0

    def copy(groups: shared_keys.PrefixGroups, store: torch.Tensor) -> torch.Tensor:
        nonlocal made
        made += 1
        if made == 3:  # in the second layer
            raise torch.OutOfMemoryError("no memory")
        return plain(groups, store)

    monkeypatch.setattr(shared_keys.PrefixGroups, "_copy", copy)
    with torch.inference_mode():
        with pytest.raises(torch.OutOfMemoryError):
            cache.step(model, dict.fromkeys(range(4), 5))
        found = cache.step(model, dict.fromkeys(range(4), 5))
        assert torch.allclose(found[2], cache_with(model, [[*SYSTEM, 2]]).step(model, {0: 5})[0], atol=1e-4)
