"""Training on the device beside the CPU, trees beside rows, bfloat16 beside float32, and memory that runs out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from astune.backbone.local.learning import forward, prefix_tree
from astune.backbone.local.learning.batch import micro_batches
from astune.backbone.local.learning.forward import predict
from astune.types import Sample
from tests.gpu.trained import CPU, RATE, answers, made_samples, prompts, trained

Say = Callable[[str, object], None]


def gradient_of_trees(folder: Path, device: torch.device, dtype: str, samples: Sequence[Sample], **model: Any) -> Any:
    loaded = trained(folder, device, dtype, model=model).loaded
    for batch in micro_batches(samples, 2000, device):
        with loaded.training():
            logprob = predict(loaded.model, batch).logprob
            (-logprob * batch.advantage * batch.weight).sum().backward()
    return torch.cat([each.grad.flatten().double().cpu() for each in loaded.model.parameters()])


def gradient_of_rows(folder: Path, samples: Sequence[Sample]) -> torch.Tensor:
    """Every row by itself through transformers' own attention, on the CPU in float64."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="sdpa")
    for sample in samples:
        ids, (span,) = torch.tensor([list(sample.timeline.token_ids)]), sample.timeline.spans
        logprobs = torch.log_softmax(model(ids).logits[0, span.start - 1 : span.stop - 1], -1)
        chosen = logprobs.gather(1, ids[0, span.start : span.stop, None])
        (-chosen * sample.advantages[0] * sample.weights[0]).sum().backward()
    return torch.cat([each.grad.flatten() for each in model.parameters()])


@pytest.mark.parametrize(
    ("dtype", "most", "long_width", "attention"),
    [
        ("float32", 1e-4, prefix_tree.LONG_WIDTH, "auto"),
        ("float32", 1e-4, 128, "auto"),
        ("float32", 1e-4, 128, "eager"),
        ("bfloat16", 0.06, 128, "auto"),
        ("bfloat16", 0.06, 128, "sdpa"),
    ],
    indirect=["attention"],
)
def test_trees_have_the_gradient_of_rows_on_the_cpu_in_float64(
    device: torch.device,
    model_dir: Path,
    dtype: str,
    most: float,
    long_width: int,
    attention: str,
    record_property: Say,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prefix_tree, "LONG_WIDTH", long_width)  # keys that are read where they are
    samples = made_samples(6, 300, shared=200) + made_samples(3, 90)
    expected = gradient_of_rows(model_dir, samples)
    found = gradient_of_trees(model_dir, device, dtype, samples, attention=attention)
    differs = float((found - expected).norm() / expected.norm())
    record_property("differs, of the norm", f"{differs:.2g}")
    assert differs < most


def test_layers_and_logits_that_are_computed_again_have_the_same_gradient(
    device: torch.device, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = made_samples(6, 200, shared=100)
    expected = gradient_of_trees(model_dir, device, "bfloat16", samples)
    monkeypatch.setattr(forward, "LOGITS_AT_ONCE", 512 * 50)
    again = gradient_of_trees(model_dir, device, "bfloat16", samples, gradient_checkpointing=True)
    assert (again - expected).norm() / expected.norm() < 0.02


@pytest.mark.parametrize(
    ("algorithm", "optimizer"),
    [
        ({}, "adamw_fused"),
        ({"loss": "ppo_clip", "kl_beta": 0.1}, "adamw_fused"),
        ({"advantage": "gae"}, "adamw"),
    ],
    ids=["reinforce", "reference", "critic"],
)
async def test_an_update_is_that_of_the_cpu(
    device: torch.device, model_dir: Path, algorithm: dict[str, Any], optimizer: str, record_property: Say
) -> None:
    samples, found = made_samples(8, 150, shared=60), []
    for where, kind in ((CPU, "adamw"), (device, optimizer)):
        one = trained(model_dir, where, algorithm=algorithm, trainer={"optimizer": kind})
        before = one.weights()
        updates = [await one.learner.update(samples, RATE) for _ in range(2)]
        found.append((updates[-1].metrics, one.weights() - before))
    (expected, step), (metrics, other) = found
    differs = float((other - step).norm() / step.norm())
    record_property("steps differ, of the norm", f"{differs:.2g}")
    assert differs < 0.02
    assert metrics.keys() == expected.keys()
    for name in ("loss", "grad_norm", "entropy", *(name for name in expected if name.startswith("critic/"))):
        assert metrics[name] == pytest.approx(expected[name], rel=1e-2, abs=1e-4), name


async def test_an_update_in_bfloat16_goes_where_that_in_float32_goes(
    device: torch.device, model_dir: Path, record_property: Say
) -> None:
    samples = made_samples(8, 150, shared=60)
    gradients = [gradient_of_trees(model_dir, device, dtype, samples) for dtype in ("float32", "bfloat16")]
    cosine = float(torch.nn.functional.cosine_similarity(*gradients, dim=0))
    record_property("cosine", f"{cosine:.5f}")
    assert cosine > 0.998


async def test_a_run_that_is_resumed_has_all_that_it_had(device: torch.device, model_dir: Path, tmp_path: Path) -> None:
    samples, algorithm = made_samples(8, 120), {"advantage": "gae"}  # with a critic, which has an optimizer too
    first = trained(model_dir, device, "bfloat16", algorithm=algorithm)
    for _ in range(2):
        await first.learner.update(samples, RATE)
    await first.learner.publish()
    first.learner.save(tmp_path / "saved")
    second = trained(model_dir, device, "bfloat16", algorithm=algorithm)
    second.learner.load(tmp_path / "saved")
    assert torch.equal(first.weights(), second.weights()) and second.sampler.policy_version == 1
    pairs = zip(first.learner._optimizer.state.values(), second.learner._optimizer.state.values(), strict=True)
    for expected, found in pairs:
        for name, value in expected.items():
            assert torch.equal(found[name], value) and found[name].device == value.device, name
    updates = [await one.learner.update(samples, RATE) for one in (first, second)]
    assert updates[0].metrics["loss"] == pytest.approx(updates[1].metrics["loss"], rel=1e-4)
    assert float((first.weights() - second.weights()).abs().max()) < RATE / 5


async def test_a_micro_batch_that_does_not_fit_is_split_and_the_update_is_the_same(
    cuda: torch.device, wide_dir: Path, record_property: Say
) -> None:
    samples = made_samples(16, 1024)

    async def step(room: float | None) -> tuple[Any, torch.Tensor, int]:
        one = trained(wide_dir, cuda, trainer={"micro_batch_tokens": 16 * 1024})
        before, held = one.weights(), torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.empty_cache()
        if room is not None:
            most = held + room
            torch.cuda.set_per_process_memory_fraction(most / torch.cuda.mem_get_info()[1])
        try:
            update = await one.learner.update(samples, RATE)
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
        return update, one.weights() - before, torch.cuda.max_memory_allocated() - held

    whole, expected, taken = await step(None)
    split, found, _ = await step(0.7 * taken)
    record_property("MiB of the whole", f"{taken / 2**20:.0f}")
    record_property("splits", split.splits)
    assert whole.splits == 0 and split.splits > 0
    assert split.metrics["loss"] == pytest.approx(whole.metrics["loss"], rel=1e-2, abs=1e-4)
    assert (found - expected).norm() / expected.norm() < 0.02


@pytest.mark.parametrize(("dtype", "most"), [("float32", 0.02), ("bfloat16", 0.3)])  # AdamW enlarges small differences
async def test_an_update_beside_answers_that_are_under_way_is_the_update_without_them(
    device: torch.device, model_dir: Path, dtype: str, most: float
) -> None:
    samples, asked, steps, said = made_samples(8, 150, shared=60), prompts(16), [], []
    for beside in (False, True):
        one = trained(model_dir, device, dtype, beside=beside)
        before = one.weights()
        if beside:
            given, _ = await asyncio.gather(answers(one.sampler, asked), one.learner.update(samples, RATE))
        else:
            given = await answers(one.sampler, asked)
            await one.learner.update(samples, RATE)
        steps.append(one.weights() - before)
        said.append([answer.output_ids for answer in given])
        assert await one.learner.publish() == 1
        pairs = zip(one.loaded.model.parameters(), one.loaded.sampling_model.parameters(), strict=True)
        assert all(torch.equal(master.to(copy.dtype), copy) for master, copy in pairs)
    assert (steps[1] - steps[0]).norm() / steps[0].norm() < most
    assert said[0] == said[1]
