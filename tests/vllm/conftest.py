"""vLLM's CPU build, in the environment that `make test-vllm` builds."""

from __future__ import annotations

from pathlib import Path

import pytest

PYTHON = Path(__file__).parents[2] / ".venv-vllm" / "bin" / "python"


@pytest.fixture(scope="session")
def vllm_python() -> str:
    if not PYTHON.exists():
        pytest.skip("make test-vllm builds the environment")
    return str(PYTHON)
