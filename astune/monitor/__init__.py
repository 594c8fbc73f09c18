"""A run's output: its folder, metrics, episodes, progress and final table."""

from astune.monitor.episodes import EpisodeLog, EpisodeRecord, read_episodes
from astune.monitor.metrics import MetricsLog, read_metrics
from astune.monitor.progress import Progress
from astune.monitor.run_dir import RunDir
from astune.monitor.summary import summarize

__all__ = [
    "EpisodeLog",
    "EpisodeRecord",
    "MetricsLog",
    "Progress",
    "RunDir",
    "read_episodes",
    "read_metrics",
    "summarize",
]
