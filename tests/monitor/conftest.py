from collections.abc import Callable

import pytest

from astune.config.schema import Config
from astune.monitor import RunDir


@pytest.fixture
def make_config(tmp_path) -> Callable[..., Config]:
    """Config of a run math/demo under the test's own folder, with keys of your choice."""

    def make(**keys: object) -> Config:
        names = {"project_name": "math", "experiment_name": "demo", "runs_dir": str(tmp_path)}
        return Config.model_validate({"astune": {**names, **keys}})

    return make


@pytest.fixture
def run_dir(make_config) -> RunDir:
    return RunDir.open(make_config(), resume=False)
