"""The state that belongs to one client."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from astune.tinker_server.checkpoints import CheckpointPath
from astune.tinker_server.jobs import RequestQueue
from astune.tinker_server.training import TrainedModel
from astune.tinker_server.versions import Version


@dataclass
class ClientSession:
    heard: float
    models: dict[str, Training] = field(default_factory=dict)
    samplers: dict[str, Sampled] = field(default_factory=dict)


@dataclass
class Training:
    """A model under training and the order of its requests. `about` is what the client said when it made it."""

    model: TrainedModel
    queue: RequestQueue
    about: dict[str, Any]


@dataclass(frozen=True)
class Sampled:
    """The weights that a sampling session samples; `path` is None for the base model."""

    version: Version
    path: CheckpointPath | None
