"""The files for 1, 8 and 64 GPUs: verl's own configuration classes take them, and their arithmetic is that of the
model. No GPU is here to run them."""

from __future__ import annotations

import pytest
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.config import CheckpointEngineConfig, FSDPActorConfig, RolloutConfig

from astune.backbone.verl.demand import Demand
from astune.backbone.verl.trainer.settings import composed, settings_of
from astune.config.load import load_config
from astune.support.resources import tiny_model_dir, tutorial_dir

FOLDER = tutorial_dir() / "math_agent"
FILES = {"verl_1gpu": 1, "verl_8gpu": 8, "verl_64gpu": 64}
MODELS = {
    "Qwen/Qwen3-1.7B": (28, 2048, 16, 6144, 1),
    "Qwen/Qwen3-8B": (36, 4096, 32, 12288, 2),
    "Qwen/Qwen3-32B": (64, 5120, 64, 25600, 2),
}
"""Layers, hidden size, heads of 128, feed-forward, and whether input and output embeddings are one or two; all have 8
heads for keys and values and a vocabulary of 151,936."""
VOCABULARY, KEYS, SIZE, GPU = 151936, 8, 128, 80e9


def parameters(model: str) -> int:
    layers, hidden, heads, inner, embeddings = MODELS[model]
    attention = hidden * (heads + 2 * KEYS) * SIZE + heads * SIZE * hidden + 2 * SIZE
    return layers * (attention + 3 * hidden * inner + 2 * hidden) + embeddings * VOCABULARY * hidden + hidden


@pytest.mark.parametrize(("name", "gpus"), FILES.items())
def test_verls_own_classes_take_the_file(name: str, gpus: int) -> None:
    # another model's folder, as these are not on this machine
    loaded = load_config(FOLDER / f"{name}.yaml", [f"astune.model.path={tiny_model_dir()}"])
    config = composed(loaded, settings_of(loaded))
    demand = Demand.of(config)
    assert config.trainer.device == "cuda" and demand.training_gpus == gpus
    assert list(demand.problems()) == []
    parts = config.actor_rollout_ref
    actor, rollout = omega_conf_to_dataclass(parts.actor), omega_conf_to_dataclass(parts.rollout)
    assert isinstance(actor, FSDPActorConfig) and isinstance(rollout, RolloutConfig)
    assert isinstance(omega_conf_to_dataclass(parts.rollout.checkpoint_engine), CheckpointEngineConfig)
    assert (rollout.name, rollout.free_cache_engine) == ("vllm", True) and actor.strategy == "fsdp2"
    assert actor.ppo_max_token_len_per_gpu >= rollout.max_model_len
    assert rollout.max_num_seqs == loaded.config.astune.rollout.max_concurrent


@pytest.mark.parametrize("name", FILES)
def test_the_arithmetic_of_memory_is_that_of_the_model(name: str) -> None:
    file = FOLDER / f"{name}.yaml"
    text = " ".join(file.read_text(encoding="utf-8").replace("#", " ").split())
    config = load_config(file).config
    own, rollout = config.astune, config.verl["actor_rollout_ref"]["rollout"]
    layers, hidden, *_ = MODELS[own.model.path]
    weights = parameters(own.model.path)
    gpus = config.verl["trainer"]["nnodes"] * config.verl["trainer"]["n_gpus_per_node"]
    used, shares = rollout["gpu_memory_utilization"], rollout["tensor_model_parallel_size"]
    cache = shares * (used * GPU - 3e9) - 2 * weights
    per_token = 2 * layers * KEYS * SIZE * 2
    conversations = own.rollout.max_concurrent * shares // gpus
    resident = 12 * weights / gpus + used * GPU
    logits, activations = (
        own.trainer.micro_batch_tokens * VOCABULARY * 4,
        layers * hidden * 2 * own.trainer.micro_batch_tokens,
    )
    training = 16 * weights / gpus + 4 * logits + activations
    for figure in (
        f"with {weights / 1e9:.2f} billion parameters",
        f"of {used} x 80 for each",
        f"and {2 * weights / shares / 1e9:.0f} of weights",
        f"values: {cache / 1e9:.0f}, which is {round(cache / per_token, -3):,.0f} tokens at {per_token / 1e3:.0f} KB",
        f"{round(cache / per_token / conversations, -2):,.0f} for each of {conversations} conversations",
        f"stay: {12 * weights / gpus / 1e9:.0f} on each GPU, {resident / 1e9:.0f} in all",
        f"parameter: {16 * weights / 1e9:.0f}, so {16 * weights / gpus / 1e9:.0f} each",
        f"x 151,936 x 4 bytes = {logits / 1e9:.0f}",
        f"activations {activations / 1e9:.0f} with",
        f"About {training / 1e9:.0f} in all",
        f"{2 * weights / 1e9:.0f} for the download, {12 * weights / 1e9:.0f} for each",
    ):
        assert figure in text, figure
    assert resident < 0.95 * GPU and training < 0.95 * GPU
