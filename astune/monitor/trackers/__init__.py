"""Trackers that people watch their runs with: TensorBoard, Weights & Biases, SwanLab, MLflow, Trackio, or one's own.

class Printed(Tracker):                                   # astune.monitor.trackers: [printed.py:Printed]
    def log(self, step, values, time):
        print(step, values)
"""

from astune.monitor.trackers.opened import NO_TRACKERS, Trackers, load_trackers, open_trackers
from astune.monitor.trackers.tracker import ShownEpisode, TrackedRun, Tracker

__all__ = ["NO_TRACKERS", "ShownEpisode", "TrackedRun", "Tracker", "Trackers", "load_trackers", "open_trackers"]
