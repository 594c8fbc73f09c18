"""The service's figures, in Prometheus' text format."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass
class Metrics:
    """Counted since the service began. Alive are those that were created and neither released nor expired."""

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

    def text(self, limit: int) -> str:
        lines = [
            *_metric("instances", "gauge", "Instances alive.", {"": self.live}),
            *_metric("instances_limit", "gauge", "Instances that there is room for.", {"": limit}),
            *_metric("instances_created_total", "counter", "Instances made.", {"": self.created}),
            *_metric("instances_released_total", "counter", "Instances given back.", {"": self.released}),
            *_metric("instances_expired_total", "counter", "Instances not used for too long.", {"": self.expired}),
            *_metric("instances_refused_total", "counter", "Instances there was no room for.", {"": self.refused}),
            *_metric("failed_total", "counter", "Calls in which the environment raised.", {"": self.failed}),
            *_metric("errors_total", "counter", "Calls answered with an error.", _by("code", self.errors)),
            *_metric("calls_total", "counter", "Calls answered.", _by("call", self.calls)),
            *_metric("call_seconds_total", "counter", "Seconds that calls took.", _by("call", self.seconds)),
        ]
        return "\n".join(lines) + "\n"


def _metric(name: str, kind: str, meaning: str, values: dict[str, float]) -> list[str]:
    name = f"astune_env_{name}"
    samples = [f"{name}{label} {value}" for label, value in values.items()]
    return [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}", *samples]


def _by(label: str, values: Mapping[str, float]) -> dict[str, float]:
    return {f'{{{label}="{key}"}}': value for key, value in sorted(values.items())}
