"""The service's figures, for Prometheus."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from astune.support.http.metrics import write_metrics

NAME = "astune_env"


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
        counts = (
            ("instances_created", "Instances made.", self.created),
            ("instances_released", "Instances given back.", self.released),
            ("instances_expired", "Instances not used for too long.", self.expired),
            ("instances_refused", "Instances there was no room for.", self.refused),
            ("failed", "Calls in which the environment raised.", self.failed),
        )
        counts_by: tuple[tuple[str, str, str, Mapping[str, float]], ...] = (
            ("errors", "Calls answered with an error.", "code", self.errors),
            ("calls", "Calls answered.", "call", self.calls),
            ("call_seconds", "Seconds that calls took.", "call", self.seconds),
        )
        families: list[Metric] = [
            GaugeMetricFamily(f"{NAME}_instances", "Instances alive.", self.live),
            GaugeMetricFamily(f"{NAME}_instances_limit", "Instances that there is room for.", self.max_instances),
            *(CounterMetricFamily(f"{NAME}_{name}", meaning, count) for name, meaning, count in counts),
        ]
        for name, meaning, label, values in counts_by:
            family = CounterMetricFamily(f"{NAME}_{name}", meaning, labels=[label])
            for key, value in sorted(values.items()):
                family.add_metric([key], value)
            families.append(family)
        return write_metrics(families)
