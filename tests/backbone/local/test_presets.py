"""Every preset takes its steps with a real, tiny model."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from astune.backbone.local.learning.learner import LocalLearner
from astune.backbone.local.model.model import load_model
from astune.backbone.local.sampling.sampler import Sampler
from astune.config.algorithm import Preset
from astune.config.load import load_config
from astune.config.rules.method import rules_of
from astune.config.schema import ModelConfig, TrainerConfig
from tests.backbone.local.conftest import make_model
from tests.backbone.local.test_learner import RATE, good_and_bad

FIGURES = {
    "cispo": {"clip_fraction"},
    "grpo": {"clip_fraction", "kl/reference"},
    "minirl": {"dropped_fraction"},
    "opmd": set[str](),
    "rloo": set[str](),
}
"""Of the losses and regularisers, by preset; the others clip."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("presets") / "model"
    make_model().save_pretrained(path)
    return path


@pytest.mark.parametrize("preset", get_args(Preset))
async def test_a_preset_makes_the_better_answer_likelier(folder: Path, preset: str) -> None:
    loaded = load_model(ModelConfig(path=str(folder), device="cpu"))
    sampler = Sampler(loaded.sampling_model, slots=4, context_length=128)
    config = load_config(None, [f"astune.algorithm.preset={preset}"], for_run=False).config.astune.algorithm
    learner = LocalLearner(loaded, sampler, config, TrainerConfig())
    samples = await good_and_bad(sampler)
    if rules_of(config).needs_critic:
        samples = [replace(sample, rewards=sample.advantages) for sample in samples]
    before = [sum(row) for row in await learner.logprobs(samples)]
    updates = [await learner.update(samples, RATE / 10) for _ in range(3)]
    after = [sum(row) for row in await learner.logprobs(samples)]
    assert after[0] - before[0] > 0 > after[1] - before[1]
    assert not any(update.skipped for update in updates) and all(map(math.isfinite, updates[-1].metrics.values()))
    own = {name for name in updates[0].metrics if name.endswith("_fraction") or name == "kl/reference"}
    assert own == FIGURES.get(preset, {"clip_fraction"})
