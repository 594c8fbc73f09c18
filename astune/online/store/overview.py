"""Counts for the operator's page: answers and traffic by version, feedback by source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import sqlalchemy as sa

from astune.online.store.audit import AuditLine
from astune.online.store.feedback.rows import JUDGE, RATER
from astune.online.store.servers import Traffic
from astune.store.tables import audit, feedback, requests, traffic

COUNTS = tuple(field.name for field in fields(Traffic))
"""Columns of `traffic` that add up."""


def answers_by_version(connection: sa.Connection) -> dict[int, int]:
    """Count the requests that each version has answered."""
    counted = sa.select(requests.c.version, sa.func.count().label("answers")).group_by(requests.c.version)
    return {row.version: int(row.answers) for row in connection.execute(counted)}


def traffic_by_version(connection: sa.Connection, since: float) -> dict[int, Mapping[str, Any]]:
    """Sum the traffic of each version from that time on, in seconds since 1970."""
    sums = [sa.func.sum(traffic.c[name]).label(name) for name in COUNTS]
    recent = sa.select(traffic.c.version, *sums).where(traffic.c.minute >= int(since // 60))
    return {row["version"]: dict(row) for row in connection.execute(recent.group_by(traffic.c.version)).mappings()}


def feedback_by_source(connection: sa.Connection) -> dict[str, Counter[str]]:
    """Count feedback by its source, a judge by name, raters or users, and its state."""
    columns = feedback.c.author, feedback.c.state
    found: dict[str, Counter[str]] = {}
    for author, state, count in connection.execute(sa.select(*columns, sa.func.count()).group_by(*columns)):
        source = author if author.startswith(JUDGE) else "raters" if author.startswith(RATER) else "users"
        found.setdefault(source, Counter())[state] += count
    return dict(sorted(found.items()))


def newest_answers(connection: sa.Connection, most: int) -> list[sa.RowMapping]:
    """Load the headings of the last so many answers, the newest first."""
    columns = [requests.c[name] for name in ("msg_id", "version", "user", "task_id", "answered")]
    rows = sa.select(*columns).order_by(requests.c.answered.desc(), requests.c.msg_id).limit(most)
    return list(connection.execute(rows).mappings())


def newest_lines(connection: sa.Connection, most: int) -> list[AuditLine]:
    """Load the last so many lines of the audit, the newest first."""
    rows = connection.execute(sa.select(audit).order_by(audit.c.id.desc()).limit(most))
    return [AuditLine(*row) for row in rows]
