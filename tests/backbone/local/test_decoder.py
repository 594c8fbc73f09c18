"""The usual decoder written out: what it computes, which models have it, and that it follows the weights."""

from __future__ import annotations

import copy
import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from astune.backbone.local.model import products
from astune.backbone.local.model.decoder import Decoder, find_decoder
from astune.backbone.local.model.recomputing import recompute
from astune.backbone.local.sampling.kv_cache import KVCache
from tests.backbone.local.families import TREES, make_family
from tests.rows import each_row

CPU = torch.device("cpu")
USUAL = ("qwen2", "qwen3", "llama", "mistral")


def decoder_of(model: Any) -> Decoder:
    found = find_decoder(model)
    assert found is not None
    return found


def logits_of(model: Any, *, own: bool) -> torch.Tensor:
    """Of a prompt in pieces and of steps behind it, in a cache with slots; `own` is the model's own forward pass."""
    cache, steps = KVCache(3, model.dtype, CPU), []
    handle = model.register_forward_pre_hook(lambda *_: None) if own else None
    with torch.inference_mode():
        cache.extend(model, [0, 1, 2], [np.arange(3, 9), np.arange(5, 20), np.arange(7, 30)])
        for token in (4, 9, 40):
            for slots in ((0, 1, 2), (0, 2)):
                steps.append(cache.step(model, dict.fromkeys(slots, token)))
                cache.append_each(list(slots), [token] * len(slots))
    if handle is not None:
        handle.remove()
    return torch.cat(steps)


@each_row("name", list(TREES))
def test_only_a_usual_decoder_is_written_out(name: str) -> None:
    assert (find_decoder(make_family(name).model) is not None) == (name in USUAL)


@each_row("changes", [{}, {"attention_bias": True}, {"tie_word_embeddings": False}])
@each_row("name", USUAL)
def test_it_computes_what_the_model_computes(name: str, changes: dict[str, object]) -> None:
    model = make_family(name, **changes).model
    decoder_of(model)
    assert torch.allclose(logits_of(model, own=False), logits_of(model, own=True), atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("changes", [{}, {"attention_bias": True}])
@pytest.mark.parametrize("amx", [False, True])
def test_one_row_in_bfloat16_is_what_it_is_among_others(
    changes: dict[str, object], amx: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "AMX", amx)
    model = make_family("llama", **changes).model.to(torch.bfloat16)
    cache = KVCache(3, torch.bfloat16, CPU)
    with torch.inference_mode():
        for module in model.modules():
            if isinstance(module, torch.nn.Linear) and module.bias is not None:
                module.bias.normal_()
        cache.extend(model, [0, 1, 2], [np.arange(5, 20)] * 3)
        together, alone = cache.step(model, {0: 4, 1: 4, 2: 4}), cache.step(model, {0: 4})
    assert cache._decoder is not None
    assert float((together - alone).float().abs().mean()) < 0.02 * float(together.float().std())


def test_a_model_of_the_same_parts_that_computes_otherwise_is_left_to_itself() -> None:
    model = make_family("llama").model
    model.model.layers[1].mlp.act_fn = torch.nn.Tanh()
    decoder_of(model)  # the activation is the model's own module
    model.model.layers[1].forward = lambda hidden, **_: 2 * hidden
    assert find_decoder(model) is None


def test_joined_weights_are_the_parameters_themselves() -> None:
    """In place, as by an optimizer, by loading, and where a parameter is given other memory."""
    model = make_family("qwen3").model
    logits_of(model, own=False)
    cache = KVCache(1, torch.float32, CPU)

    def step() -> torch.Tensor:
        cache.clear()
        with torch.inference_mode():
            return cache.step(model, {0: 5})

    before = step()
    changes: list[Any] = [
        lambda: [parameter.data.mul_(0.9) for parameter in model.parameters()],
        lambda: model.load_state_dict({name: value * 1.1 for name, value in model.state_dict().items()}),
        lambda: [setattr(each, "data", each.data * 0.9) for each in model.parameters()],
    ]
    for change in changes:
        with torch.no_grad():
            change()
        after = step()
        assert not torch.equal(after, before)
        alone = copy.deepcopy(model)
        fresh = KVCache(1, torch.float32, CPU)
        with torch.inference_mode():
            assert torch.equal(after, fresh.step(alone, {0: 5}))
        before = after


def test_what_was_written_out_of_one_model_is_never_taken_for_another() -> None:
    """Python gives the address, and so the `id`, of an object that is gone to a new one: so a cache keeps the model."""
    cache, model = KVCache(1, torch.float32, CPU), make_family("qwen3").model

    def step(cache: KVCache, model: Any) -> torch.Tensor:
        cache.clear()
        with torch.inference_mode():
            return cache.step(model, {0: 5})

    step(cache, model)
    known = weakref.ref(model)
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.model.norm.weight.mul_(2)
    del model
    gc.collect()
    assert known() is not None
    assert torch.equal(step(cache, other), step(KVCache(1, torch.float32, CPU), other))
    gc.collect()
    assert known() is None


def test_joined_weights_take_no_second_copy() -> None:
    model = make_family("qwen3").model
    decoder = decoder_of(model)
    own = {
        parameter.untyped_storage().data_ptr(): parameter.untyped_storage().nbytes() for parameter in model.parameters()
    }
    assert sum(own.values()) == sum(each.numel() * 4 for each in model.parameters())
    assert {product.layer.weight.untyped_storage().data_ptr() for product in decoder.products()} <= set(own)


def test_a_model_with_joined_weights_is_trained_and_saved_as_before(tmp_path: Path) -> None:
    joined, apart = (make_family("qwen3").model for _ in range(2))
    with torch.inference_mode():
        decoder_of(joined)
    for model in (joined, apart):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for _ in range(3):
            tokens = torch.arange(3, 23)[None]
            model.set_attn_implementation("sdpa")
            model(input_ids=tokens, labels=tokens).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    joined.save_pretrained(tmp_path)
    read = AutoModelForCausalLM.from_pretrained(tmp_path)
    for (name, one), other, again in zip(joined.named_parameters(), apart.parameters(), read.parameters(), strict=True):
        assert torch.equal(one, other) and torch.equal(one, again), name


def test_a_hook_on_any_module_is_called() -> None:
    model, called = make_family("qwen3").model, []
    expected = logits_of(model, own=False)
    with model.model.layers[1].mlp.down_proj.register_forward_hook(lambda *_: called.append(1)):
        assert torch.allclose(logits_of(model, own=False), expected, atol=2e-4, rtol=1e-4)
    assert called


def test_a_model_whose_layers_are_recomputed_is_written_out_too() -> None:
    model = make_family("qwen3").model
    recompute(model)
    found = decoder_of(model)
    assert not found.hooked
    model.get_input_embeddings().register_forward_hook(lambda *_: None)
    assert found.hooked and find_decoder(model) is None


def test_a_window_is_kept() -> None:
    """Mistral with a window of 8 tokens: what lies before does not count."""
    decoder = decoder_of(make_family("mistral").model)
    assert {layer.rule.window for layer in decoder.layers} == {8}
