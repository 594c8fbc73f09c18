"""Real verl on a CPU: `make test-verl` installs it; without it the tests here skip themselves."""

import importlib.util
import os
import warnings

from astune.backbone.verl.environment import environment

collect_ignore_glob = [] if importlib.util.find_spec("verl") else ["test_*.py"]

if importlib.util.find_spec("verl"):
    os.environ.update(environment(cpu=True), RAY_USAGE_STATS_ENABLED="0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # verl warns of engines that are not installed, and imports what Ray has moved
        import astune.backbone.verl.trainer.worker  # noqa: F401
