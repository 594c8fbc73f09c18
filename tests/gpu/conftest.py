"""What `make gpu-check` runs on a GPU. On other machines the same tests run on their CPU, so that they are known to be
sound; what is about a GPU's own memory is skipped there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where there is no GPU the first row of each test shows that it is sound; all are run before a release."""
    seen = set()
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            name = item.nodeid.partition("[")[0]
            if name in seen and not torch.cuda.is_available():
                item.add_marker(pytest.mark.release)
            seen.add(name)


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def cuda(device: torch.device) -> torch.device:
    if device.type != "cuda":
        pytest.skip("it is about the memory of a CUDA device, and there is none")
    torch.cuda.empty_cache()
    return device


@pytest.fixture
def attention(request: pytest.FixtureRequest, device: torch.device) -> str:
    """A value of astune.model.attention, where it can be computed."""
    if request.param == "flash_attention_2" and device.type != "cuda":
        pytest.skip("its kernels are for CUDA alone")
    return str(request.param)


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four layers whose heads have the size that kernels are made for."""
    return written(tmp_path_factory.mktemp("models") / "small")


@pytest.fixture(scope="session")
def wide_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Large enough to fill some memory."""
    return written(tmp_path_factory.mktemp("models") / "wide", hidden_size=1024, intermediate_size=4096, head_dim=128)


def written(folder: Path, **changes: Any) -> Path:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    settings = {"vocab_size": 512, "hidden_size": 128, "intermediate_size": 256, "head_dim": 64} | changes
    torch.manual_seed(0)
    made = Qwen3Config(
        **settings,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=20_000,
        tie_word_embeddings=True,
    )
    model = Qwen3ForCausalLM(made)
    for parameter in model.parameters():
        if parameter.ndim == 2:
            parameter.data.mul_(3)  # random weights are nearly uniform; this makes predictions differ
    model.save_pretrained(folder)
    return folder
