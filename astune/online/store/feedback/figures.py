"""Counts of feedback by kind and state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import sqlalchemy as sa

from astune.online.store.feedback.rules import STATES
from astune.store.tables import audit, feedback

JUDGE_FAILED = "judge_failed"
"""The kind of the audit line about a judge that failed."""


@dataclass(frozen=True)
class FeedbackFigures:
    by_kind: Mapping[tuple[str, str], int]
    """Counts by kind and state, without those that are 0."""
    again: int
    """Number of times that the same feedback was sent again."""
    judge_failures: int

    @property
    def by_state(self) -> dict[str, int]:
        """Counts of every state, over all kinds."""
        counts: Counter[str] = Counter()
        for (_, state), count in self.by_kind.items():
            counts[state] += count
        return {state: counts[state] for state in STATES}


def feedback_figures(connection: sa.Connection) -> FeedbackFigures:
    counted = sa.select(feedback.c.kind, feedback.c.state, sa.func.count()).group_by(feedback.c.kind, feedback.c.state)
    by_kind = {(kind, state): int(count) for kind, state, count in connection.execute(counted)}
    return FeedbackFigures(
        by_kind=dict(sorted(by_kind.items())),
        again=_lines(connection, "feedback_again"),
        judge_failures=_lines(connection, JUDGE_FAILED),
    )


def _lines(connection: sa.Connection, what: str) -> int:
    return int(connection.scalar(sa.select(sa.func.count()).select_from(audit).where(audit.c.what == what)) or 0)
