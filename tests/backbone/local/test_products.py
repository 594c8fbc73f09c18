"""Products by oneDNN are PyTorch's own, forward and backward, and follow the weights."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from astune.backbone.local.learning.learner import LocalLearner
from astune.backbone.local.model import products
from astune.backbone.local.model.model import LoadedModel, load_model
from astune.backbone.local.model.products import Product, quicken_linear
from astune.backbone.local.sampling.sampler import Sampler
from astune.config.schema import AlgorithmConfig, ModelConfig, TrainerConfig
from astune.support import machine_memory
from astune.types import Sample, Sampling, Span, Timeline
from tests.rows import each_row

BOTH = frozenset({torch.float32, torch.bfloat16})

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="PyTorch is built without oneDNN")


@pytest.fixture(autouse=True)
def every_product_by_onednn(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Small ones too, and on every processor."""
    monkeypatch.setattr(products, "by_onednn", lambda: BOTH)
    monkeypatch.setattr(products, "WORTH_A_CALL", 0)
    yield


def taken(monkeypatch: pytest.MonkeyPatch) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """States and weight of each product that oneDNN computes from now on."""
    found: list[tuple[torch.Tensor, torch.Tensor]] = []
    own = products._product

    def product(states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        found.append((states, weight))
        return own(states, weight, bias)

    monkeypatch.setattr(products, "_product", product)
    return found


@settings(max_examples=80, deadline=None)
@given(
    shape=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    inputs=st.integers(1, 70),
    outputs=st.integers(1, 70),
    bias=st.booleans(),
    seed=st.integers(0, 99),
)
def test_values_and_gradients_are_those_of_the_formula(
    shape: list[int], inputs: int, outputs: int, bias: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    layer = torch.nn.Linear(inputs, outputs, bias=bias)
    exact = copy.deepcopy(layer).double()
    assert quicken_linear(layer) == 1
    states = torch.randn(inputs, *shape).permute(*range(1, len(shape) + 1), 0)  # in no simple order of memory
    gradient = torch.randn(outputs, *shape).permute(*range(1, len(shape) + 1), 0)
    mine, wide = states.clone().requires_grad_(), states.double().requires_grad_()
    found, formula = layer(mine), exact(wide)
    found.backward(gradient)
    formula.backward(gradient.double())
    gradients = [(one.grad, other.grad) for one, other in zip(layer.parameters(), exact.parameters(), strict=True)]
    for one, other in [(found.detach(), formula.detach()), (mine.grad, wide.grad), *gradients]:
        assert one is not None and other is not None and one.shape == other.shape
        assert float((one.double() - other).norm()) <= 1e-5 * (1 + float(other.norm()))


@pytest.mark.parametrize("frozen", ["weight", "states", "bias"])
def test_what_is_frozen_gets_no_gradient(frozen: str) -> None:
    layer, states = torch.nn.Linear(16, 8), torch.randn(3, 16, requires_grad=frozen != "states")
    layer.weight.requires_grad_(frozen != "weight")
    layer.bias.requires_grad_(frozen != "bias")
    quicken_linear(layer)
    layer(states).sum().backward()
    assert [layer.weight.grad is None, states.grad is None, layer.bias.grad is None] == [
        frozen == name for name in ("weight", "states", "bias")
    ]


def test_a_gradient_without_memory_of_its_own_is_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a sum is one number for all: oneDNN computes such a thing a thousand times slower."""
    found = taken(monkeypatch)
    layer = torch.nn.Linear(16, 8)
    quicken_linear(layer)
    layer(torch.randn(5, 3, 16).transpose(0, 1).requires_grad_()).sum().backward()
    assert len(found) == 3 and not any(0 in each.stride() for pair in found for each in pair)


def test_a_copy_follows_its_own_weights_and_its_own_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, states = torch.nn.Linear(16, 8), torch.randn(3, 16)
    quicken_linear(layer)
    other = copy.deepcopy(layer)
    with torch.no_grad():
        layer.weight.mul_(2)
        layer.bias.mul_(2)
    torch.testing.assert_close(layer(states), 2 * other(states))
    found = taken(monkeypatch)
    reduced = copy.deepcopy(other).bfloat16()
    assert torch.equal(reduced(states.bfloat16()), functional.linear(states.bfloat16(), reduced.weight, reduced.bias))
    with torch.autocast("cpu", torch.bfloat16):
        assert other(states).dtype == torch.bfloat16
    assert not found


@each_row("dtype", [torch.float32, torch.bfloat16])
@each_row("rows", [1, 2, 64, 200])
@each_row("worth", [True, False])
def test_a_weight_that_is_laid_out_or_copied_is_the_weight(
    dtype: torch.dtype, rows: int, worth: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "WORTH_A_CALL", 0 if worth else 2**40)
    if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("oneDNN does not compute in bfloat16 on this processor")
    found = taken(monkeypatch)
    layer = torch.nn.Linear(48, 80).to(dtype)
    product, states = Product(layer), torch.randn(rows, 1, 48).to(dtype)
    tolerance = {"atol": 1e-5, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 0.02, "rtol": 0.02}
    with torch.inference_mode():
        for change in (lambda: None, lambda: layer.weight.mul_(-1), lambda: layer.bias.add_(1)):
            change()
            product.renew()
            torch.testing.assert_close(product.of(states), layer(states), **tolerance)
    layer.weight.data = layer.weight.data * 3  # other memory, of which nobody told
    with torch.inference_mode():
        torch.testing.assert_close(product.of(states), layer(states), **tolerance)
    assert [states.dtype for states, _ in found] == [dtype] * 4 * worth


@pytest.mark.parametrize("bias", [True, False])
def test_a_small_product_in_bfloat16_is_rounded_once(bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "WORTH_A_CALL", 2**40)
    layer, states = torch.nn.Linear(48, 80, bias=bias).bfloat16(), torch.randn(3, 1, 48).bfloat16()
    with torch.inference_mode():
        found, exact = Product(layer).of(states), copy.deepcopy(layer).double()(states.double())
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), exact, atol=1e-5, rtol=2**-8)


def test_no_rows_are_no_product() -> None:
    layer = torch.nn.Linear(16, 8)
    quicken_linear(layer)
    assert layer(torch.zeros(2, 0, 16)).shape == (2, 0, 8)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_what_is_published_is_what_is_sampled(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every weight is laid out: after an update the sampler's log-probabilities are the trainer's."""
    if dtype == "bfloat16" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("oneDNN does not compute in bfloat16 on this processor")
    loaded: LoadedModel = load_model(ModelConfig(path="tiny", device="cpu", dtype=dtype))  # type: ignore[arg-type]
    sampler = Sampler(loaded.sampling_model, slots=2, context_length=256)
    learner = LocalLearner(loaded, sampler, AlgorithmConfig(loss="reinforce"), TrainerConfig())
    found = taken(monkeypatch)
    prompt = tuple(range(20, 50))
    for _ in range(3):
        answer = await sampler.generate(prompt, Sampling(max_tokens=12, seed=1))
        span = Span(0, 30, 42, 0, 1.0, True, tuple(answer.logprobs))
        line = Timeline("agent", prompt + tuple(answer.output_ids), (span,))
        sample = Sample(line, (1.0,), (1 / 12,), "task", "episode")
        (trained,) = await learner.logprobs([sample])
        off = (torch.tensor(trained) - torch.tensor(answer.logprobs)).abs()
        assert float(off.mean()) < (1e-5 if dtype == "float32" else 0.03)
        await learner.update([sample], 0.01)
        await learner.publish()
    assert {states.dtype for states, _ in found} == {loaded.dtype}


def test_a_processor_without_bfloat16_computes_in_float32_alone() -> None:
    """oneDNN told to use no more than AVX2, as on older processors of AMD."""
    program = (
        "from astune.backbone.local.model import products; products.is_of_amd = lambda: True;"
        "print(sorted(map(str, products.by_onednn())))"
    )
    told = subprocess.run(
        [sys.executable, "-c", program],
        env={"ONEDNN_MAX_CPU_ISA": "AVX2", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path.cwd())},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.strip() == "['torch.float32']"


@pytest.mark.parametrize(("maker", "expected"), [("AuthenticAMD", True), ("GenuineIntel", False), ("", False)])
def test_the_maker_of_the_processor_is_read(
    maker: str, expected: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    described = tmp_path / "cpuinfo"
    described.write_text(f"processor\t: 0\nvendor_id\t: {maker}\nmodel name\t: one\n")
    monkeypatch.setattr(machine_memory, "DESCRIBED", described)
    assert machine_memory.is_of_amd.__wrapped__() is expected


def test_on_another_processor_a_model_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "by_onednn", frozenset)
    layer = torch.nn.Linear(16, 8)
    assert quicken_linear(layer) == 0 and "forward" not in vars(layer)
