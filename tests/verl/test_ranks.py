"""Two and three ranks that share the weights and the rows are one, and go on from each other's checkpoints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from astune.backbone.local.learning.learner import LocalLearner
from astune.backbone.local.model.model import load_model, read_weights
from astune.backbone.local.sampling.sampler import Sampler
from astune.config.schema import ModelConfig, TrainerConfig
from tests.backbone.local.conftest import make_model
from tests.backbone.local.test_prefix_tree import branching_samples
from tests.verl.ranks import CONFIG, RATE

ROOT = Path(__file__).parents[2]
TRAINER = TrainerConfig(micro_batch_tokens=300, max_grad_norm=0.02)


def run_ranks(folder: Path, *groups: tuple[int, int]) -> list[dict[str, float]]:
    """The figures of each update that groups of so many ranks take, so many each, one going on from the other."""
    wanted = [f"{ranks}:{updates}" for ranks, updates in groups]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "tests/verl/ranks.py", f"{folder}", *wanted]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return [told for ranks, _ in groups for told in json.loads((folder / f"after_{ranks}.json").read_text())]


async def test_three_updates_by_two_ranks_then_three_give_the_weights_of_local(tmp_path: Path) -> None:
    """Thirteen rows are filled up to fourteen, then fifteen; the second checkpoint is gone on from by more ranks."""
    make_model().save_pretrained(tmp_path / "model")
    told = run_ranks(tmp_path, (2, 2), (3, 1))

    loaded = load_model(ModelConfig(path=str(tmp_path / "model"), device="cpu"))
    local = LocalLearner(loaded, Sampler(loaded.sampling_model, slots=1, context_length=400), CONFIG, TRAINER)
    for figures in told:
        expected = (await local.update(branching_samples(), RATE)).metrics
        for name in set(expected) - {"tokens/packed", "tokens/flattened_per_packed"}:
            assert figures[name] == pytest.approx(expected[name], rel=2e-4, abs=1e-6), name
    found = dict(read_weights(tmp_path / "after_3").named_parameters())
    wanted = dict(loaded.model.named_parameters())
    largest = max(float(value.detach().abs().max()) for value in wanted.values())
    with torch.no_grad():
        assert max(float((found[name] - wanted[name]).abs().max()) for name in wanted) < 1e-4 * largest
