from __future__ import annotations

from pathlib import Path

import pytest
import torch

from astune.backbone.local.learning.batch import micro_batches
from astune.backbone.local.learning.learner import LocalLearner
from astune.backbone.local.learning.reference import reference_of
from astune.backbone.local.model.model import load_model
from astune.backbone.local.sampling.sampler import Sampler
from astune.config.schema import AlgorithmConfig, ModelConfig, TrainerConfig
from tests.backbone.local.test_learner import RATE, good_and_bad
from tests.backbone.local.test_prefix_tree import branching_samples, logprobs_of_row


def learner_over(model_dir: Path, algorithm: AlgorithmConfig, dtype: str = "float32") -> tuple[LocalLearner, Sampler]:
    loaded = load_model(ModelConfig(path=str(model_dir), device="cpu", dtype=dtype))  # type: ignore[arg-type]
    sampler = Sampler(loaded.sampling_model, slots=4, context_length=128)
    return LocalLearner(loaded, sampler, algorithm, TrainerConfig()), sampler


def test_the_reference_says_what_the_rows_have_under_the_weights_as_they_were(model_dir: Path) -> None:
    loaded = load_model(ModelConfig(path=str(model_dir), device="cpu"))
    before = load_model(ModelConfig(path=str(model_dir), device="cpu")).model
    before.set_attn_implementation("sdpa")
    reference = reference_of(loaded)
    for parameter in loaded.model.parameters():
        parameter.data.mul_(1.1)
    samples = branching_samples()
    for batch in micro_batches(samples, 150, torch.device("cpu")):
        with loaded.training():
            found = reference(batch)
        assert not found.requires_grad
        rows = [logprobs_of_row(before, samples[n], span) for n in batch.samples for span in samples[n].timeline.spans]
        assert torch.allclose(found, torch.cat(rows).float(), atol=1e-4)


@pytest.mark.fault(
    "Runs and resuming",
    "a run that holds the policy near the model it began with is resumed",
    "that model is still the one the run began with, not the checkpoint's",
)
@pytest.mark.parametrize(("estimator", "where"), [("k3", "loss"), ("k1", "reward")])
async def test_the_reference_is_what_the_run_began_with_after_a_resume_too(
    model_dir: Path, tmp_path: Path, estimator: str, where: str
) -> None:
    algorithm = AlgorithmConfig.model_validate({"kl_beta": 0.5, "kl_estimator": estimator, "kl_in": where})
    learner, sampler = learner_over(model_dir, algorithm)
    samples = await good_and_bad(sampler)
    first = await learner.update(samples, RATE)
    assert first.metrics["kl/reference"] == 0  # the weights are still the reference's
    await learner.publish()
    learner.save(tmp_path / "saved")
    restored, _ = learner_over(model_dir, algorithm)
    restored.load(tmp_path / "saved")
    second = await learner.update(samples, RATE)
    assert await restored.update(samples, RATE) == second
    assert second.metrics["kl/reference"] > 1e-6


async def test_a_divergence_that_counts_much_keeps_the_policy_nearer(model_dir: Path) -> None:
    far = {}
    for beta in (0.0, 1e-6, 10.0):
        learner, sampler = learner_over(model_dir, AlgorithmConfig(kl_beta=beta))
        samples = await good_and_bad(sampler)
        updates = [await learner.update(samples, RATE) for _ in range(6)]
        far[beta] = updates[-1].metrics.get("kl/reference")
    assert far[0.0] is None and far[1e-6] is not None and far[10.0] is not None
    assert far[10.0] < far[1e-6] / 2


async def test_a_model_sampled_in_bfloat16_has_a_reference_in_bfloat16(model_dir: Path) -> None:
    learner, sampler = learner_over(model_dir, AlgorithmConfig(kl_beta=0.1), "bfloat16")
    (model,) = learner._reference.args
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    update = await learner.update(await good_and_bad(sampler), RATE)
    assert not update.skipped and update.metrics["kl/reference"] < 0.05
