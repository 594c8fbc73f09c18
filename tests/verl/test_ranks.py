"""Two and three ranks that share the weights and the rows are one, and go on from each other's checkpoints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from astune.backbone.local.learning.learner import LocalLearner
from astune.backbone.local.model.model import load_model, save_model
from astune.backbone.local.sampling.sampler import Sampler
from astune.config.schema import LoraConfig, ModelConfig, TrainerConfig
from astune.context_tracker.model_dir import copy_tokenizer
from astune.support.resources import tiny_model_dir
from tests.backbone.local.conftest import make_model
from tests.verl.ranks import RATE, config_of
from tests.verl.test_critic import critic_weights, rewarded
from tests.verl.test_learner import apart

ROOT = Path(__file__).parents[2]
GROUPS = {
    "rl": [(2, 2), (3, 1)],
    "distill_lora": [(2, 1)],
    "ppo_lora": [(2, 2), (3, 1)],
    "ppo_shared": [(2, 2)],
}
"""So many ranks that take so many updates, by what they learn with."""
OF_LOCAL = {"tokens/packed", "tokens/flattened_per_packed", "critic/split_for_memory"}
"""Figures that are others on `local`."""
TRAINER = TrainerConfig(micro_batch_tokens=300, max_grad_norm=0.02)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the models, and with what came out of all groups: they begin together, as each start imports verl."""
    place = tmp_path_factory.mktemp("ranks")
    for name, seed, layers in (("model", 0, 2), ("teacher", 1, 3)):
        make_model(seed, layers).save_pretrained(place / name)
        copy_tokenizer(tiny_model_dir(), place / name)
    wanted = [f"{name}:{ranks}:{updates}" for name, groups in GROUPS.items() for ranks, updates in groups]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "tests/verl/ranks.py", f"{place}", *wanted]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return place


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.parametrize("algorithm", GROUPS)
async def test_groups_of_ranks_that_go_on_from_each_other_give_the_weights_of_local(
    folder: Path, algorithm: str
) -> None:
    """Thirteen rows are filled up to fourteen, then fifteen; the second checkpoint is gone on from by more ranks."""
    told = [
        figures
        for ranks, _ in GROUPS[algorithm]
        for figures in json.loads((folder / f"{algorithm}_{ranks}.json").read_text())
    ]
    lora = LoraConfig(rank=5) if algorithm.endswith("lora") else LoraConfig()
    torch.manual_seed(0)
    loaded = load_model(ModelConfig(path=str(folder / "model"), device="cpu", lora=lora))
    sampler = Sampler(loaded.sampling_model, slots=1, context_length=400, adapters=loaded.adapters)
    local = LocalLearner(loaded, sampler, config_of(algorithm, folder), TRAINER)
    for figures in told:
        expected = (await local.update(rewarded(), RATE)).metrics
        for name in set(expected) - OF_LOCAL:
            assert figures[name] == pytest.approx(expected[name], rel=2e-4, abs=1e-6), name
    save_model(loaded, folder / f"{algorithm}_local")
    last, _ = GROUPS[algorithm][-1]
    name = "model.safetensors" if loaded.adapters is None else "adapter_model.safetensors"
    found, wanted = (load_file(folder / each / name) for each in (f"{algorithm}_{last}", f"{algorithm}_local"))
    assert apart(wanted, found) < 5e-4
    if algorithm.startswith("ppo"):
        critic = load_file(folder / f"{algorithm}_{last}" / "critic" / "model.safetensors")
        assert apart(critic_weights(local), critic) < 5e-4
