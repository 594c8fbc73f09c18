"""The figures on the page of the trinity backbone are those of the model."""

from __future__ import annotations

from pathlib import Path

from astune.config.keys import value_at
from astune.config.load import load_config

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "trinity.md").read_text(encoding="utf-8")


def test_the_arithmetic_of_memory_is_that_of_the_model() -> None:
    """Qwen3-8B: 36 layers, hidden size 4,096, 32 heads of 128 of which 8 for keys and values, feed-forward 12,288."""
    layers, hidden, heads, kv, size, inner, vocabulary = 36, 4096, 32, 8, 128, 12288, 151936
    attention = hidden * (heads + 2 * kv) * size + heads * size * hidden + 2 * size
    parameters = layers * (attention + 3 * hidden * inner + 2 * hidden) + 2 * vocabulary * hidden + hidden
    file = ROOT / "tutorial" / "math_agent" / "trinity_qwen3_8b.yaml"
    text = " ".join(file.read_text(encoding="utf-8").replace("#", " ").split())
    config = load_config(file).config
    engines = config.trinity["explorer"]["rollout_model"]
    gpus = config.trinity["cluster"]["node_num"] * config.trinity["cluster"]["gpu_per_node"] - engines["engine_num"]
    per_token = 2 * layers * kv * size * 2
    cache = engines["gpu_memory_utilization"] * 80e9 - 2 * parameters - 3e9
    conversations = value_at(config, "astune.rollout.max_concurrent") // engines["engine_num"]
    logits = value_at(config, "astune.trainer.micro_batch_tokens") * vocabulary * 4
    for figure in (
        f"{parameters / 1e9:.2f} billion parameters",
        f"weights {2 * parameters / 1e9:.0f} (bfloat16)",
        f"values: {cache / 1e9:.0f}, which is {round(cache / per_token, -3):,.0f} tokens",
        f"at {per_token / 1e3:.0f} KB each",
        f"or {round(cache / per_token / conversations, -2):,.0f} for each of {conversations} conversations",
        f"per parameter: {16 * parameters / 1e9:.0f}, so {16 * parameters / gpus / 1e9:.0f} each",
        f"{vocabulary:,} x 4 bytes = {logits / 1e9:.0f}",
        f"{12 * parameters / 1e9:.0f} for each checkpoint",
    ):
        assert figure in text, figure
