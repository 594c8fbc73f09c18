"""What a service has come to: versions, commits, what was said and what waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from astune.config.online import FeedbackConfig
from astune.online.training.commit import LEASE
from astune.store import commits, leases, versions
from astune.store.commits import CommitRow
from astune.store.database import Database
from astune.store.feedback.figures import feedback_figures
from astune.store.feedback.judgements import judgements, preferences
from astune.store.versions import ModelVersion

MOST_COMMITS = 20


@dataclass(frozen=True)
class ServiceStatus:
    """`versions` are those that were made; `feedback` counts by state (`astune.store.feedback.rules.STATES`); `rated`
    are the episodes that no version was made from yet; `trainer` is the process that has the lease."""

    now: float
    versions: Sequence[ModelVersion]
    commits: Sequence[CommitRow]
    feedback: Mapping[str, int]
    rated: int
    trainer: str | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def status_of(database: Database, now: float) -> ServiceStatus:
    """As it is at `now`, in seconds since 1970."""
    with database.reading() as connection:
        rated = len(judgements(connection, FeedbackConfig())) + len(preferences(connection))
        return ServiceStatus(
            now,
            [version for version in versions.every(connection) if version.number],
            commits.recent(connection, MOST_COMMITS),
            {state: count for state, count in feedback_figures(connection).by_state.items() if count},
            rated,
            leases.held_by(connection, LEASE, now),
        )
