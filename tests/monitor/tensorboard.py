"""Figures that go to TensorBoard too, as those of a run without other settings."""

from astune.config.schema import Config
from astune.monitor import MetricsLog, RunDir
from astune.monitor.trackers import load_trackers, open_trackers


def log_with_tensorboard(run_dir: RunDir) -> MetricsLog:
    def warn(text: str) -> None:
        raise AssertionError(text)

    config = Config()
    return MetricsLog(run_dir, open_trackers(load_trackers(config.astune.monitor), config, run_dir, warn))
