"""The status of a service: versions, commits, feedback, and what waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from astune.config.online import FeedbackConfig
from astune.online.store import commits, leases, versions
from astune.online.store.commits import CommitRow
from astune.online.store.feedback.figures import feedback_figures
from astune.online.store.feedback.judgements import judgements, preferences
from astune.online.store.versions import ModelVersion
from astune.online.training.commit import LEASE
from astune.store.database import Database

MOST_COMMITS = 20


@dataclass(frozen=True)
class ServiceStatus:
    """`versions` are those that were made; `feedback` counts by state (`store.feedback.rules.STATES`); `rated` are the
    episodes that no version was made from yet; `trainer` is the process that has the lease; `not_served` says why an
    older version than the newest answers."""

    now: float
    versions: Sequence[ModelVersion]
    commits: Sequence[CommitRow]
    feedback: Mapping[str, int]
    rated: int
    trainer: str | None
    not_served: str | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def status_of(database: Database, now: float) -> ServiceStatus:
    """Read the status at `now`, in seconds since 1970."""
    with database.reading() as connection:
        rated = len(judgements(connection, FeedbackConfig())) + len(preferences(connection))
        return ServiceStatus(
            now,
            [version for version in versions.every(connection) if version.number],
            commits.recent(connection, MOST_COMMITS),
            {state: count for state, count in feedback_figures(connection).by_state.items() if count},
            rated,
            leases.find_holder(connection, LEASE, now),
            versions.why_not_served(connection),
        )
