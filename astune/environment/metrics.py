"""The service's figures, for Prometheus."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from astune.support.http.metrics import write_metrics


@dataclass
class Metrics:
    """Counted since the service began. Alive are those that were created and neither released nor expired."""

    max_instances: int
    created: int = 0
    released: int = 0
    expired: int = 0
    refused: int = 0
    """Instances that there was no room for."""
    failed: int = 0
    """Calls in which the environment raised."""
    calls: Counter[str] = field(default_factory=Counter)
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    errors: Counter[str] = field(default_factory=Counter)

    @property
    def live(self) -> int:
        return self.created - self.released - self.expired

    def text(self) -> bytes:
        return write_metrics(
            [
                _gauge("instances", "Instances alive.", self.live),
                _gauge("instances_limit", "Instances that there is room for.", self.max_instances),
                _count("instances_created", "Instances made.", self.created),
                _count("instances_released", "Instances given back.", self.released),
                _count("instances_expired", "Instances not used for too long.", self.expired),
                _count("instances_refused", "Instances there was no room for.", self.refused),
                _count("failed", "Calls in which the environment raised.", self.failed),
                _count_by("code", "errors", "Calls answered with an error.", self.errors),
                _count_by("call", "calls", "Calls answered.", self.calls),
                _count_by("call", "call_seconds", "Seconds that calls took.", self.seconds),
            ]
        )


def _gauge(name: str, meaning: str, value: int) -> Metric:
    return GaugeMetricFamily(f"astune_env_{name}", meaning, value)


def _count(name: str, meaning: str, value: int) -> Metric:
    return CounterMetricFamily(f"astune_env_{name}", meaning, value)


def _count_by(label: str, name: str, meaning: str, values: Mapping[str, float]) -> Metric:
    family = CounterMetricFamily(f"astune_env_{name}", meaning, labels=[label])
    for key, value in sorted(values.items()):
        family.add_metric([key], value)
    return family
