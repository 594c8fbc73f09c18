"""One training step, looked at and taken back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from astune.algorithm import ADVANTAGES, to_samples
from astune.algorithm.samples import Weighting
from astune.backbone.local.inspect import SpanUpdate, UpdateInspection, UpdateInspector
from astune.backbone.local.learning.learner import LocalLearner
from astune.backbone.local.model.model import LoadedModel, load_model
from astune.backbone.local.sampling.sampler import Sampler
from astune.config.schema import AstuneConfig
from astune.context_tracker.merge import TurnForest
from astune.plugins import load_plugin
from astune.types import Episode, Group, Sample, Sampling, StopReason, Task, Turn, Update, Verdict
from tests.rows import each_row

SYSTEM = (1, 2, 3)


class Parts:
    """A loaded model, its sampler, and the configuration of a run."""

    def __init__(self, path: str, model: dict[str, Any] | None = None, **sections: dict[str, Any]) -> None:
        sections["trainer"] = {"learning_rate": 1e-3} | sections.get("trainer", {})
        self.config = AstuneConfig.model_validate(
            {"model": {"path": path, "device": "cpu"} | (model or {}), **sections}
        )
        self.loaded: LoadedModel = load_model(self.config.model)
        self.sampler = Sampler(self.loaded.sampling_model, slots=4, context_length=256)

    async def inspect(self, samples: Sequence[Sample]) -> UpdateInspection:
        return await UpdateInspector(self.loaded, self.sampler, self.config).inspect(samples)

    def weights(self) -> list[torch.Tensor]:
        models = (self.loaded.model, self.loaded.sampling_model)
        return [value.clone() for model in models for value in model.state_dict().values()]


async def attempt(parts: Parts, number: int, reward: float, rounds: int = 2, temperature: float = 1.0) -> Episode:
    """An agent that goes on from its own answers; in the last round it asks for two from the same history."""
    turns: list[Turn] = []
    history: tuple[int, ...] = SYSTEM
    for step in range(rounds):
        for choice in range(2 if step == rounds - 1 else 1):
            settings = Sampling(max_tokens=6, temperature=temperature, seed=100 * number + 10 * step + choice)
            drawn = await parts.sampler.generate(history, settings)
            said = (drawn.output_ids, drawn.logprobs, drawn.policy_version, drawn.finish_reason, temperature)
            turns.append(Turn("solver", history, *said))
        history = (*history, *turns[-1].output_ids, 7, 8)
    task, verdict = Task("t", "q"), Verdict(reward)
    return Episode(
        f"e{number}", task, tuple(turns), TurnForest(turns).timelines(), StopReason.COMPLETED, verdict=verdict
    )


async def samples_of(parts: Parts, rewards: Sequence[float] = (0.0, 1.0, 0.0), **options: Any) -> list[Sample]:
    episodes = [await attempt(parts, number, reward, **options) for number, reward in enumerate(rewards)]
    algorithm = parts.config.algorithm
    advantage = load_plugin(algorithm.advantage, kind="advantage", builtin=ADVANTAGES)
    weighting = Weighting(algorithm.loss_aggregation, algorithm.credit, 6)
    return to_samples([Group(Task("t", "q"), tuple(episodes))], advantage, weighting)[0]


def updates(inspection: UpdateInspection) -> list[SpanUpdate]:
    return [update for row in inspection.samples for update in row if update is not None]


def total(inspection: UpdateInspection) -> float:
    return math.fsum(update.loss for update in updates(inspection))


async def test_before_the_update_the_tiny_model_is_as_sure_as_when_it_sampled() -> None:
    parts = Parts("tiny")
    inspection = await parts.inspect(await samples_of(parts))
    for update in updates(inspection):
        assert update.before == pytest.approx(update.sampled, abs=1e-4)
    assert max(abs(change) for update in updates(inspection) for change in update.changes) > 1e-3


@each_row("credit", ["once", "per_branch", "mean_branch"])
@each_row("loss", ["ppo_clip", "reinforce"])
async def test_every_span_with_weight_has_its_part_of_the_loss(model_dir: Path, credit: str, loss: str) -> None:
    parts = Parts(str(model_dir), algorithm={"credit": credit, "loss": loss})
    samples = await samples_of(parts)
    inspection = await parts.inspect(samples)
    assert any(span.shared for sample in samples for span in sample.timeline.spans)
    for sample, row in zip(samples, inspection.samples, strict=True):
        for span, weight, update in zip(sample.timeline.spans, sample.weights, row, strict=True):
            assert (update is None) == (weight == 0)
            if update is not None:
                assert len(update.before) == len(update.after) == len(span) and update.sampled == tuple(span.logprobs)
    assert total(inspection) == pytest.approx(inspection.metrics["loss"], abs=1e-6)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
async def test_it_is_the_step_that_training_would_take(model_dir: Path, temperature: float) -> None:
    """With a warm-up, a small norm for clipping, and micro-batches of a few tokens."""
    trainer = {"warmup_steps": 4, "max_grad_norm": 0.1, "micro_batch_tokens": 20, "weight_decay": 0.1}
    parts = Parts(str(model_dir), trainer=trainer)
    samples = await samples_of(parts, temperature=temperature)
    inspection = await parts.inspect(samples)
    learner = LocalLearner(parts.loaded, parts.sampler, parts.config.algorithm, parts.config.trainer)
    assert inspection.metrics == (await learner.update(samples, inspection.learning_rate / 4)).metrics
    assert inspection.metrics["grad_norm"] > inspection.max_grad_norm == 0.1
    assert inspection.metrics["learning_rate"] == inspection.learning_rate / 4
    trained = await parts.inspect(samples)
    assert [update.before for update in updates(trained)] == [update.after for update in updates(inspection)]


@pytest.mark.parametrize(
    "model", [{}, {"dtype": "bfloat16"}, {"gradient_checkpointing": True}], ids=["float32", "bfloat16", "checkpointing"]
)
async def test_afterwards_nothing_has_changed(model_dir: Path, model: dict[str, Any]) -> None:
    parts = Parts(str(model_dir), model)
    samples = await samples_of(parts)
    before, version = parts.weights(), parts.sampler.policy_version
    first = await parts.inspect(samples)
    assert all(torch.equal(old, new) for old, new in zip(before, parts.weights(), strict=True))
    assert parts.sampler.policy_version == version and not parts.loaded.model.training
    assert await parts.inspect(samples) == first
    assert any(update.after != update.before for update in updates(first))
    assert all(parameter.grad is None for parameter in parts.loaded.model.parameters())
    parts.sampler.forget()  # `samples` were sampled with an empty cache
    again = await samples_of(parts)
    assert [s.timeline.logprobs for s in again] == [s.timeline.logprobs for s in samples]


async def test_the_weights_are_put_back_when_the_step_fails(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = Parts(str(model_dir))
    samples, before = await samples_of(parts), parts.weights()

    def fail(*_: object) -> None:
        raise RuntimeError("out of memory")

    real = LocalLearner.update

    async def update(self: LocalLearner, samples: Sequence[Sample], learning_rate: float) -> Update:
        done = await real(self, samples, learning_rate)
        monkeypatch.setattr(LocalLearner, "objective", fail)
        return done

    monkeypatch.setattr(LocalLearner, "update", update)
    with pytest.raises(RuntimeError, match="out of memory"):
        await parts.inspect(samples)
    assert all(torch.equal(old, new) for old, new in zip(before, parts.weights(), strict=True))


async def test_what_was_better_than_the_others_becomes_likelier_and_the_rest_less_likely(model_dir: Path) -> None:
    parts = Parts(str(model_dir))
    samples = await samples_of(parts)
    inspection = await parts.inspect(samples)
    moved = {
        sample.episode_id: math.fsum(change for update in row if update for change in update.changes)
        for sample, row in zip(samples, inspection.samples, strict=True)
    }
    assert moved["e1"] > 0 > max(moved["e0"], moved["e2"])


async def test_a_shared_turn_changes_alike_on_all_its_branches(model_dir: Path) -> None:
    parts = Parts(str(model_dir), algorithm={"credit": "per_branch"})
    samples = await samples_of(parts)
    inspection = await parts.inspect(samples)
    rows: dict[tuple[str, int], list[SpanUpdate]] = {}
    for sample, row in zip(samples, inspection.samples, strict=True):
        for span, update in zip(sample.timeline.spans, row, strict=True):
            assert update is not None
            rows.setdefault((sample.episode_id, span.turn), []).append(update)
    several = [branches for branches in rows.values() if len(branches) > 1]
    assert len(several) == 3
    for first, *rest in several:
        for other in rest:
            assert other.before == pytest.approx(first.before, abs=1e-5)
            assert other.after == pytest.approx(first.after, abs=1e-5)


async def test_a_gradient_that_is_not_finite_is_shown_and_not_applied(model_dir: Path) -> None:
    parts = Parts(str(model_dir))
    samples = [replace(s, advantages=tuple(float("nan") for _ in s.advantages)) for s in await samples_of(parts)]
    inspection = await parts.inspect(samples)
    assert inspection.skipped
    assert all(update.after == update.before for update in updates(inspection))


async def test_without_samples_there_is_no_step(model_dir: Path) -> None:
    inspection = await Parts(str(model_dir)).inspect([])
    assert (inspection.metrics, inspection.samples, inspection.skipped) == ({}, (), False)
