"""Online training: an agent in production gets better from what its users say.

    from astune.online import SamplingRateStrategy, TrainingRunner

`wire` has the bodies that agent and service exchange, `agent` what runs in the agent's process. Each name below is
imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from astune.online.agent.client import OnlineClient, ServiceAway, ServiceError, ServiceRefused, send_feedback
    from astune.online.agent.collector import DataCollector
    from astune.online.agent.counts import RunnerStats
    from astune.online.agent.functions import shadow_safe
    from astune.online.agent.runner import TrainingRunner
    from astune.online.agent.selection import (
        ExplicitMarkingStrategy,
        RequestContext,
        SamplingRateStrategy,
        SelectionStrategy,
        mark,
    )
    from astune.online.agent.shadow import ShadowRun, collect_message_ids, shadow_run
    from astune.online.agent.writes import RecordedTool, read_only

_LAZY = {
    "DataCollector": "collector",
    "ExplicitMarkingStrategy": "selection",
    "OnlineClient": "client",
    "RequestContext": "selection",
    "RunnerStats": "counts",
    "SamplingRateStrategy": "selection",
    "SelectionStrategy": "selection",
    "ServiceAway": "client",
    "ServiceError": "client",
    "ServiceRefused": "client",
    "ShadowRun": "shadow",
    "RecordedTool": "writes",
    "TrainingRunner": "runner",
    "collect_message_ids": "shadow",
    "mark": "selection",
    "read_only": "writes",
    "send_feedback": "client",
    "shadow_run": "shadow",
    "shadow_safe": "functions",
}

__all__ = [
    "DataCollector",
    "ExplicitMarkingStrategy",
    "OnlineClient",
    "RecordedTool",
    "RequestContext",
    "RunnerStats",
    "SamplingRateStrategy",
    "SelectionStrategy",
    "ServiceAway",
    "ServiceError",
    "ServiceRefused",
    "ShadowRun",
    "TrainingRunner",
    "collect_message_ids",
    "mark",
    "read_only",
    "send_feedback",
    "shadow_run",
    "shadow_safe",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'astune.online' has no attribute {name!r}")
    return getattr(import_module(f"astune.online.agent.{_LAZY[name]}"), name)
