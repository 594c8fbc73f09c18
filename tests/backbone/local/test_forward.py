"""Logits in chunks, and layers that are computed once more in the backward pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from astune.backbone.local.learning import forward
from astune.backbone.local.learning.batch import MicroBatch, micro_batches
from astune.backbone.local.learning.forward import predict
from astune.backbone.local.model.attention import additive_mask
from astune.backbone.local.model.model import load_model
from astune.config.schema import ModelConfig
from astune.errors import ModelError
from tests.backbone.local.families import make_family
from tests.backbone.local.test_families import CPU, gradient, random_samples
from tests.rows import each_row


def one_batch() -> MicroBatch:
    (batch,) = micro_batches(random_samples(), 10_000, CPU)
    return batch


def loss_with_entropy(model: Any, batch: MicroBatch) -> torch.Tensor:
    found = predict(model, batch, entropy_gradient=True)
    return (found.logprob * batch.advantage).sum() + 0.5 * found.entropy(batch).sum()


@each_row("name", ["qwen3", "gemma2", "granite", "cohere2", "phi3"])
def test_chunks_have_the_loss_and_the_gradient_of_all_logits_at_once(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, batch = make_family(name).model.double(), one_batch()
    whole = loss_with_entropy(model, batch)
    expected = gradient(model, whole)
    logits = model(
        input_ids=batch.tokens, position_ids=batch.positions, logits_to_keep=batch.predictors, layout=batch.layout
    ).logits[0]
    logprobs = torch.log_softmax(logits / batch.temperatures[:, None], -1)
    entropy = -(logprobs.exp() * logprobs).sum(-1)[batch.source]
    plain = (logprobs[batch.source, batch.target] * batch.advantage).sum() + 0.5 * entropy.sum()
    assert whole.item() == pytest.approx(plain.item(), rel=1e-12)
    for rows in (1, 7, len(batch.predictors) - 1):
        monkeypatch.setattr(forward, "LOGITS_AT_ONCE", 64 * rows)
        parts = loss_with_entropy(model, batch)
        assert parts.item() == pytest.approx(whole.item(), rel=1e-12)
        assert (gradient(model, parts) - expected).norm() / expected.norm() < 1e-12


def test_entropy_for_the_eye_has_no_gradient_and_the_same_value() -> None:
    model, batch = make_family("qwen3").model, one_batch()
    seen, trained = predict(model, batch), predict(model, batch, entropy_gradient=True)
    assert not seen.entropies.requires_grad and trained.entropies.requires_grad
    assert seen.entropies.tolist() == pytest.approx(trained.entropies.tolist(), rel=1e-6)


class Largest(TorchDispatchMode):
    """The size of the largest tensor that any operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(made) if isinstance(leaf, torch.Tensor)]
        self.numbers = max([self.numbers, *sizes])
        return made


def test_no_tensor_holds_all_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary, hidden = 8192, 32
    model, batch = make_family("qwen3", vocab_size=vocabulary).model, one_batch()
    sizes = {}
    for name, at_once in (("whole", 2**26), ("chunks", 4 * vocabulary)):
        monkeypatch.setattr(forward, "LOGITS_AT_ONCE", at_once)
        with Largest() as largest:
            predict(model, batch).logprob.sum().backward()  # type: ignore[no-untyped-call]
        sizes[name] = largest.numbers
    assert sizes == {"whole": len(batch.predictors) * vocabulary, "chunks": vocabulary * hidden}  # the embedding's


@each_row(
    ("name", "changes"),
    [
        ("gpt2", {"attn_pdrop": 0.5, "embd_pdrop": 0.5, "resid_pdrop": 0.5, "n_head": 4, "n_layer": 2, "n_embd": 32}),
        ("opt", {"dropout": 0.5, "layerdrop": 0.5, "ffn_dim": 64, "word_embed_proj_dim": 32}),
        ("starcoder2", {"attention_dropout": 0.5, "residual_dropout": 0.5, "embedding_dropout": 0.5}),
        ("phi3", {"attention_dropout": 0.5, "resid_pdrop": 0.5, "embd_pdrop": 0.5}),
        ("mixtral", {"attention_dropout": 0.5, "router_jitter_noise": 0.5, "num_local_experts": 4}),
        ("qwen3_moe", {"output_router_logits": True, "router_aux_loss_coef": 100.0}),
        ("gemma2", {}),
    ],
)
def test_recomputed_layers_compute_as_in_sampling_whatever_the_configuration_drops(
    name: str, changes: dict[str, object], tmp_path: Path
) -> None:
    """Dropout, jitter of experts, the load-balancing loss: none of it is in a gradient, and nothing else changes."""
    batch = one_batch()
    random = make_family(name, **changes)
    random.model.save_pretrained(tmp_path)
    gradients = []
    for checkpointing in (False, True):
        loaded = load_model(ModelConfig(path=str(tmp_path), device="cpu", gradient_checkpointing=checkpointing))
        saved = 0

        def count(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal saved
            saved += tensor.numel()
            return tensor

        with loaded.training(), torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            loss = (predict(loaded.model, batch).logprob * batch.advantage).sum()
        with loaded.training():
            gradients.append((gradient(loaded.model, loss), saved))
        assert not any(module.training for module in loaded.model.modules())
    (kept, all_saved), (again, few_saved) = gradients
    assert torch.equal(kept, again)
    assert few_saved < all_saved / 2
    with torch.no_grad():
        plain = (predict(random.model, batch).logprob * batch.advantage).sum()
    assert loss.item() == pytest.approx(plain.item(), rel=1e-5)


def test_a_model_without_layers_to_recompute_is_refused(tmp_path: Path) -> None:
    make_family("ctrl", n_head=4, n_layer=2, n_embd=32, dff=64, n_positions=512).model.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"gradient_checkpointing: CTRLLMHeadModel"):
        load_model(ModelConfig(path=str(tmp_path), device="cpu", gradient_checkpointing=True))


@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize("name", ["qwen3", "mistral"], ids=["in parts", "in blocks"])
def test_all_layers_keep_the_same_masks(name: str, reduced: bool, tmp_path: Path) -> None:
    """For the backward pass. A cast of its own for each layer would be the largest thing of a long row."""
    made = make_family(name, num_hidden_layers=4).model
    made.save_pretrained(tmp_path)
    dtype = "bfloat16" if reduced else "float32"
    loaded = load_model(ModelConfig(path=str(tmp_path), device="cpu", dtype=dtype))
    batch = one_batch()
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_floating_point() and bool((tensor == -torch.inf).any()):
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with loaded.training(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        predict(loaded.model, batch)
    assert batch.layout is not None
    ((_, in_parts),) = batch.layout._plans
    (plan,) = batch.layout._plans.values()
    (masks,) = plan.masks.values()
    assert in_parts == (name == "qwen3")
    assert {*kept} == (set() if in_parts else {mask.untyped_storage().data_ptr() for mask in masks})
    assert len(masks) == len(plan.parts.blocks)
    assert {mask.dtype for mask in masks} == {loaded.dtype}


@given(st.integers(1, 5), st.integers(1, 40), st.integers(1, 50), st.integers(1, 4))
def test_masks_say_what_is_seen_in_rows_that_kernels_take_as_they_are(n: int, q: int, k: int, shared: int) -> None:
    seen = torch.rand(n, 1, q, k, generator=torch.Generator().manual_seed(n * q + k)) < 0.5
    query, key = torch.zeros(n, 2 * shared, q, 4), torch.zeros(n, 2, k, 4)
    mask = additive_mask(seen, query, key)
    expected = torch.where(seen, 0.0, -torch.inf)
    assert torch.equal(mask, expected if q == 1 else expected.repeat(1, 1, shared, 1))
    assert mask.stride(3) == 1 and all(stride % 8 == 0 for stride in mask.stride()[:3])
