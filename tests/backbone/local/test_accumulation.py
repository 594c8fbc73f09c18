"""Micro-batches that do not fit into memory, and optimizers."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from astune.backbone.local.learning.accumulation import is_out_of_memory
from astune.backbone.local.learning.learner import LocalLearner
from astune.backbone.local.learning.optimizer import make_optimizer
from astune.backbone.local.model.model import load_model
from astune.backbone.local.sampling.sampler import Sampler
from astune.config.schema import AlgorithmConfig, ModelConfig, TrainerConfig
from astune.errors import MissingDependency, TrainingError
from tests.backbone.local.test_families import random_samples
from tests.rows import each_row

RATE = 1e-3
FULL = {
    "cuda": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    "cpu": RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried"),
}


def learner_of(model_dir: Path, **trainer: Any) -> tuple[LocalLearner, Any]:
    loaded = load_model(ModelConfig(path=str(model_dir), device="cpu"))
    sampler = Sampler(loaded.sampling_model, slots=2, context_length=128)
    return LocalLearner(loaded, sampler, AlgorithmConfig(loss="reinforce"), TrainerConfig(**trainer)), loaded.model


def weights(model: Any) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def fill_memory(model: Any, where: str, calls: set[int], error: Exception) -> list[int]:
    """Let the first layer fail in the `calls`-th of its forward or backward passes; the rows' tokens of each pass. In a
    backward pass the head and the last layer have added to the gradient by then."""
    seen: list[int] = []

    def fail(module: Any, states: Any) -> None:
        seen.append(states[0].shape[1])
        if len(seen) in calls:
            raise error

    layer = model.model.layers[0]
    if where == "forward":
        layer.register_forward_pre_hook(fail)
    else:
        layer.register_full_backward_pre_hook(fail)
    return seen


@pytest.mark.fault(
    "Agents and the engine",
    "a micro-batch does not fit into memory",
    "it is split in two, down to one row; the update is the same, and `updates/split_for_memory` counts it",
)
@each_row("where", ["forward", "backward"])
@each_row("calls", [{1}, {2}, {1, 3}, {2, 5}])
async def test_an_update_that_was_split_equals_one_that_was_not(
    model_dir: Path, where: str, calls: set[int], caplog: pytest.LogCaptureFixture
) -> None:
    samples = random_samples()
    whole, model = learner_of(model_dir, micro_batch_tokens=60)
    before = weights(model)
    expected = await whole.update(samples, RATE)
    assert expected.splits == 0
    split, other = learner_of(model_dir, micro_batch_tokens=60)
    fill_memory(other, where, calls, FULL["cuda" if where == "backward" else "cpu"])
    with caplog.at_level(logging.WARNING):
        found = await split.update(samples, RATE)
    assert found.splits == len(calls)
    assert len([record for record in caplog.records if "does not fit" in record.message]) == 1  # once, not each time
    for name in ("loss", "grad_norm", "entropy", "kl/sampler"):
        assert found.metrics[name] == pytest.approx(expected.metrics[name], rel=1e-5)
    assert (weights(model) - before).abs().max() > RATE / 2
    assert (weights(other) - weights(model)).abs().max() < RATE / 100


@pytest.mark.fault(
    "Agents and the engine", "one row alone does not fit into memory", "the run ends and says which row, and what helps"
)
async def test_a_row_that_does_not_fit_ends_the_run_and_leaves_no_gradient(model_dir: Path) -> None:
    learner, model = learner_of(model_dir)
    before = weights(model)
    fill_memory(model, "backward", set(range(1, 100)), FULL["cuda"])
    with pytest.raises(TrainingError, match=r"a row of \d+ tokens \(episode episode\) does not fit.*checkpointing"):
        await learner.update(random_samples(), RATE)
    assert torch.equal(weights(model), before)
    assert all(parameter.grad is None for parameter in model.parameters())


async def test_an_error_of_another_kind_is_not_taken_for_a_full_memory(model_dir: Path) -> None:
    learner, model = learner_of(model_dir)
    seen = fill_memory(model, "forward", {1}, RuntimeError("shapes cannot be multiplied"))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        await learner.update(random_samples(), RATE)
    assert len(seen) == 1


def test_torch_itself_is_understood_where_a_cpu_has_no_more_memory() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(10**18)
    assert is_out_of_memory(caught.value)


async def test_a_fused_optimizer_takes_the_same_steps(model_dir: Path) -> None:
    found = []
    for kind in ("adamw", "adamw_fused"):
        learner, model = learner_of(model_dir, optimizer=kind, weight_decay=0.1)
        before = weights(model)
        for _ in range(2):
            await learner.update(random_samples(), RATE)
        found.append(weights(model) - before)
    assert found[0].abs().max() > RATE / 2
    assert (found[0] - found[1]).abs().max() < RATE / 100


def test_an_optimizer_whose_library_is_missing_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(MissingDependency, match=r"adamw_8bit needs bitsandbytes.*pip install bitsandbytes"):
        make_optimizer([torch.nn.Parameter(torch.zeros(2))], TrainerConfig(optimizer="adamw_8bit"))
