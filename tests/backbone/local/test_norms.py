"""RMSNorm of a CPU in float32 is transformers', forward and backward, and nothing else is taken for one."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from astune.backbone.local.model import norms
from astune.backbone.local.model.norms import quicken
from tests.backbone.local.families import FAMILIES, make_family
from tests.rows import each_row

OTHERWISE = {"gemma2", "gemma3_text", "qwen3_next", "qwen3_5_text", "cohere2"}
"""Families whose norms add 1 to their weight, or take the mean off; two have one kind besides that is usual."""


def norm_of(size: int, eps: float = 1e-6) -> Qwen3RMSNorm:
    norm = Qwen3RMSNorm(size, eps)
    torch.nn.init.normal_(norm.weight)
    return norm


@settings(max_examples=60, deadline=None)
@given(
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    size=st.integers(1, 70),
    scale=st.sampled_from([1e-6, 1e-3, 1.0, 300.0]),
    eps=st.sampled_from([1e-6, 1e-5, 1e-2]),
    seed=st.integers(0, 99),
)
def test_values_and_gradients_are_those_of_the_formula(
    shape: list[int], size: int, scale: float, eps: float, seed: int
) -> None:
    torch.manual_seed(seed)
    norm, states = norm_of(size, eps), scale * torch.randn(*shape, size)
    exact = copy.deepcopy(norm).double()
    assert quicken(norm) == 1
    given = torch.randn(size, *shape).permute(*range(1, len(shape) + 1), 0)  # in no simple order of memory
    inputs = [states.clone().requires_grad_(), states.double().requires_grad_()]
    found = norm(inputs[0])
    wide = inputs[1]
    over = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    formula = wide * over * exact.weight
    found.backward(given)
    formula.backward(given.double())
    with torch.no_grad():
        whole = (given.double() * over * exact.weight).norm()  # of which the mean is taken off: little may be left
        for mine, right, most in [
            (found, formula, formula.norm()),
            (inputs[0].grad, wide.grad, whole),
            (norm.weight.grad, exact.weight.grad, (given.double() * wide * over).norm()),
        ]:
            assert mine is not None and right is not None
            assert float((mine.double() - right).norm()) <= 1e-6 * float(most)


@pytest.mark.parametrize("frozen", ["weight", "states"])
def test_what_is_frozen_gets_no_gradient(frozen: str) -> None:
    norm, states = norm_of(16), torch.randn(3, 16, requires_grad=frozen != "states")
    norm.weight.requires_grad_(frozen != "weight")
    quicken(norm)
    norm(states).sum().backward()
    assert (norm.weight.grad is None) == (frozen == "weight")
    assert (states.grad is None) == (frozen == "states")


@each_row("family", FAMILIES)
def test_a_model_computes_the_same_and_only_norms_of_that_formula_are_taken(family: str) -> None:
    tokens = torch.arange(3, 40).remainder(60)[None]
    found = []
    for quick in (False, True):
        model = make_family(family).plain
        count = quicken(model) if quick else 0
        model(input_ids=tokens, use_cache=False).logits.square().mean().backward()
        gradient = torch.cat([each.grad.flatten() for each in model.parameters() if each.grad is not None])
        found.append((model(input_ids=tokens, use_cache=False).logits.detach(), gradient, count))
    (logits, gradient, _), (quick_logits, quick_gradient, count) = found
    assert (count > 0) == (family not in OTHERWISE)
    assert float((logits - quick_logits).abs().max()) <= 1e-5 * float(logits.abs().max())
    assert float((gradient - quick_gradient).norm()) <= 1e-4 * float(gradient.norm())


def test_a_copy_follows_its_own_weights_and_its_own_precision() -> None:
    norm, states = norm_of(16), torch.randn(3, 16)
    quicken(norm)
    other = copy.deepcopy(norm)
    with torch.no_grad():
        norm.weight.mul_(2)
    torch.testing.assert_close(norm(states), 2 * other(states))
    plain = Qwen3RMSNorm(16)
    plain.load_state_dict(other.state_dict())
    reduced = copy.deepcopy(other).bfloat16()
    assert torch.equal(reduced(states.bfloat16()), plain.bfloat16()(states.bfloat16()))


@pytest.mark.parametrize("size", [1e-3, 1.0, 300.0])
def test_weights_of_any_size_are_known(size: float) -> None:
    norm = norm_of(16)
    with torch.no_grad():
        norm.weight.mul_(size)
    assert quicken(norm) == 1


def test_other_modules_are_left_alone() -> None:
    left = torch.nn.ModuleList(
        [torch.nn.LayerNorm(16, bias=False), torch.nn.Linear(16, 16), norm_of(16).bfloat16(), norm_of(16).to("meta")]
    )
    assert quicken(left) == 0


def test_a_fused_norm_gives_half_precision_where_training_has_it() -> None:
    """What a GPU computes, on this CPU: weights in float32 under autocast give what weights in bfloat16 give."""
    norm, states = norm_of(64), torch.randn(3, 64)
    plain = norms._forward_fused(norm, states)
    assert plain.dtype == torch.float32 and torch.allclose(plain, norm(states), atol=1e-6)
    with torch.autocast("cpu", torch.bfloat16):
        reduced = norms._forward_fused(norm, states)
    assert reduced.dtype == torch.bfloat16 and torch.allclose(reduced.float(), plain, rtol=2**-7)
