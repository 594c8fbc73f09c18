"""Events that the processes of a Trinity run tell the driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from astune.algorithm.receipt import Receipt
from astune.types import Episode


@dataclass(frozen=True)
class EpisodeDone:
    """An episode ended. `step` is the explored batch it belongs to, for an evaluation the steps done before it."""

    episode: Episode
    step: int
    phase: str


@dataclass(frozen=True)
class EvaluationStarted:
    step: int
    decoding: str
    episodes: int


@dataclass(frozen=True)
class EvaluationDone:
    step: int
    decoding: str
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class ExploreStarted:
    """`tasks` of batch `step` were handed to the runners."""

    step: int
    tasks: int
    episodes: int


@dataclass(frozen=True)
class Explored:
    """Batch `step` is played and in the trainer's buffer, as `rows` experiences of `groups` groups."""

    step: int
    groups: int
    metrics: Mapping[str, float]
    receipt: Receipt
    rows: int


@dataclass(frozen=True)
class Logged:
    """Figures that Trinity's explorer or trainer (`role`) logged at a step of its own."""

    role: str
    step: int
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class SetupFailed:
    """The workflow's `setup` failed in a process that was to play episodes."""

    message: str


@dataclass(frozen=True)
class Warned:
    """Something is wrong where episodes are played, and the user is to read it at once."""

    text: str


Event = EpisodeDone | Warned | EvaluationStarted | EvaluationDone | ExploreStarted | Explored | Logged
