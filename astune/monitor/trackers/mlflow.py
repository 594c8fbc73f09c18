"""MLflow: figures by step, the configuration as parameters, episodes as traces."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import mlflow
from mlflow.entities import Metric, Param

from astune.monitor.trackers.tracker import ShownEpisode, TrackedRun, Tracker

ALLOWED = re.compile(r"[^\w .:/-]", re.ASCII)
"""What a name there must not have."""
MOST_PARAMS = 100
MOST_METRICS = 1000
"""At once."""
LONGEST_PARAM = 6000
STATES = {"completed": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}


class MlflowTracker(Tracker):
    """All by a client of its own: whatever run the agent's code has active stays that."""

    def start(self, run: TrackedRun) -> str:
        wanted = self.config.mlflow
        if wanted.tracking_uri is not None:  # traces go to the address of the process
            mlflow.set_tracking_uri(wanted.tracking_uri)
        self._client = mlflow.MlflowClient()
        if run.id is not None:
            self._run_id, self._experiment = run.id, self._client.get_run(run.id).info.experiment_id
            self._client.update_run(self._run_id, status="RUNNING")
            return self._run_id
        name = wanted.experiment or run.project
        known = self._client.get_experiment_by_name(name)
        self._experiment = known.experiment_id if known else self._client.create_experiment(name)
        self._run_id = self._client.create_run(self._experiment, run_name=run.name).info.run_id
        params = [Param(key, str(value)[:LONGEST_PARAM]) for key, value in run.keys.items()]
        for start in range(0, len(params), MOST_PARAMS):
            self._client.log_batch(self._run_id, params=params[start : start + MOST_PARAMS])
        return self._run_id

    def log(self, step: int, values: Mapping[str, float], time: float) -> None:
        now = round(time * 1000)
        points = [Metric(ALLOWED.sub("_", name), value, now, step) for name, value in values.items()]
        for start in range(0, len(points), MOST_METRICS):
            self._client.log_batch(self._run_id, metrics=points[start : start + MOST_METRICS])

    def show(self, step: int, phase: str, episodes: Sequence[ShownEpisode]) -> None:
        for each in episodes:
            tags = {"step": str(step), "phase": phase, "task": each.task_id, "reward": str(each.reward)}
            span = self._client.start_trace(
                phase,
                inputs={"messages": each.messages[:-1]},
                tags=tags,
                experiment_id=self._experiment,
                run_id=self._run_id,
            )
            outputs = {"messages": each.messages[-1:], "reason": each.reason, "stop_reason": each.stop_reason}
            self._client.end_trace(span.trace_id, outputs=outputs)

    def finish(self, status: str) -> None:
        mlflow.flush_trace_async_logging()
        self._client.set_terminated(self._run_id, STATES[status])
