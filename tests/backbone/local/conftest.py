"""A random Qwen3 of two layers, small enough to run a forward pass in a millisecond."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

VOCABULARY = 64


def make_model(seed: int = 0, layers: int = 2) -> Any:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from astune.backbone.local.model.attention import ATTENTION

    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        attn_implementation=ATTENTION,
    )
    model = Qwen3ForCausalLM(config).eval()
    for parameter in model.parameters():
        if parameter.ndim == 2:
            parameter.data.mul_(8)  # random weights are nearly uniform; this makes predictions differ
    return model


@pytest.fixture
def model() -> Any:
    return make_model()


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    make_model().save_pretrained(tmp_path / "model")
    return tmp_path / "model"
