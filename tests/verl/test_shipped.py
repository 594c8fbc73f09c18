"""The files for 1, 8 and 64 GPUs: verl's own configuration classes take them, and their arithmetic is that of the
model. No GPU is here to run them."""

from __future__ import annotations

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.config import CheckpointEngineConfig, FSDPActorConfig, RolloutConfig

from astune.backbone.memory.model_size import ModelSize
from astune.backbone.verl.demand import Demand
from astune.backbone.verl.memory import estimate
from astune.backbone.verl.trainer.settings import compose_settings, settings_of
from astune.config.load import load_config
from astune.support.resources import tiny_model_dir, tutorial_dir

FOLDER = tutorial_dir() / "math_agent"
FILES = {"verl_1gpu": 1, "verl_8gpu": 8, "verl_64gpu": 64}
MODELS = {
    "Qwen/Qwen3-1.7B": ModelSize(1_720_574_976, "", 28, 2048, 6144, 16, 8, 128, 151936, tied=True),
    "Qwen/Qwen3-8B": ModelSize(8_190_735_360, "", 36, 4096, 12288, 32, 8, 128, 151936, tied=False),
    "Qwen/Qwen3-32B": ModelSize(32_762_123_264, "", 64, 5120, 25600, 64, 8, 128, 151936, tied=False),
}
GPU = 80e9


@pytest.mark.parametrize(("name", "gpus"), FILES.items())
def test_verls_own_classes_take_the_file(name: str, gpus: int) -> None:
    # another model's folder, as these are not on this machine
    loaded = load_config(FOLDER / f"{name}.yaml", [f"astune.model.path={tiny_model_dir()}"])
    config = compose_settings(loaded, settings_of(loaded))
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


@pytest.mark.parametrize("model", MODELS)
def test_the_models_have_as_many_numbers_as_is_said(model: str) -> None:
    size = MODELS[model]
    shape = Qwen3Config(
        vocab_size=size.vocabulary,
        hidden_size=size.hidden,
        intermediate_size=size.intermediate,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        head_dim=size.head_dim,
        tie_word_embeddings=size.tied,
    )
    with torch.device("meta"):
        assert sum(each.numel() for each in Qwen3ForCausalLM(shape).parameters()) == size.parameters


@pytest.mark.parametrize("name", FILES)
def test_the_arithmetic_of_memory_is_that_of_the_doctor(name: str) -> None:
    file = FOLDER / f"{name}.yaml"
    text = " ".join(file.read_text(encoding="utf-8").replace("#", " ").split())
    loaded = load_config(file)
    config = loaded.config.astune
    size, length = MODELS[config.model.path], config.model.max_model_len
    assert length is not None
    memory = estimate(size, settings_of(loaded).tree, config, length)
    learning, tokens, used = dict(memory.learning), memory.tokens(GPU), memory.used
    shares = memory.demand.gpus_of_a_server
    weights, gradient, averages, gathered, activations, logits = (learning[each] / 1e9 for each in learning)
    resident = sum(memory.resting.values()) / 1e9
    cache = tokens * memory.per_token * shares / 1e9
    for figure in (
        f"with {size.parameters / 1e9:.2f} billion parameters",
        f"of {used} x 80 for each",
        f"and {memory.server_weights / 1e9:.0f} of weights",
        f"values: {cache:.0f}, which is {round(tokens, -3):,} tokens at {memory.per_token * shares / 1e3:.0f} KB",
        f"{round(tokens / memory.conversations, -2):,.0f} for each of {memory.conversations} conversations",
        f"stay: {resident:.0f} on each GPU, {resident + used * GPU / 1e9:.0f} in all",
        f"parameter: {16 * size.parameters / 1e9:.0f}, so {weights + gradient + averages:.0f} each",
        f"{config.trainer.micro_batch_tokens:,} x 151,936 x 2 bytes, four times over: {logits:.0f}",
        f"activations {activations:.0f} with",
        f"gathered weights {gathered:.0f}",
        f"About {sum(learning.values()) / 1e9:.0f} in all",
        f"GPUs of {memory.least_gpu() / 1e9:.0f} would do",
        f"{2 * size.parameters / 1e9:.0f} for the download, {12 * size.parameters / 1e9:.0f} for each",
    ):
        assert figure in text, figure
    assert list(memory.lacks(GPU)) == []
