"""Real verl on a CPU: `make test-verl` installs it; without it the tests here skip themselves."""

from __future__ import annotations

import importlib.util
import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from astune.backbone.verl.environment import environment

if TYPE_CHECKING:
    from tests.verl.one_process import OneProcess

collect_ignore_glob = [] if importlib.util.find_spec("verl") else ["test_*.py"]

if importlib.util.find_spec("verl"):
    os.environ.update(environment(cpu=True), RAY_USAGE_STATS_ENABLED="0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # verl warns of engines that are not installed, and imports what Ray has moved
        import astune.backbone.verl.trainer.worker  # noqa: F401


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.backbone.local.conftest import make_model

    folder = tmp_path_factory.mktemp("verl") / "model"
    make_model().save_pretrained(folder)
    return folder


@pytest.fixture
def workers(begun: OneProcess) -> OneProcess:
    """The worker of a module as it began: weights, adapter and critic."""
    begun.go_back()
    return begun
