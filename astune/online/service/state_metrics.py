"""Figures of versions, roles and releases for Prometheus: read from the store, so every server says the same."""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from astune.online.store import aliases, commits, leases, releases, versions

ROLES = ("train", "release")
"""Roles of which one process works at a time, by the names of their leases."""


def state_metrics(connection: sa.Connection, now: float) -> list[Metric]:
    """`now` is in seconds since 1970."""
    version = _gauge(
        "astune_version",
        "The number of the version that is the newest, champion (which answers), or tested against it.",
        "is",
        [("newest", versions.newest(connection).number), ("champion", aliases.champion(connection).number)],
    )
    release = releases.find_open(connection)
    if release is not None:
        version.add_metric(["challenger"], release.challenger)
    alive = [(role, float(leases.find_holder(connection, role, now) is not None)) for role in ROLES]
    found = [version, _gauge("astune_role_alive", "1 while a process has this role.", "role", alive)]
    last = [row for row in commits.recent(connection, 1) if row.ended is not None]
    if last and last[0].ended is not None:
        age = max(0.0, now - last[0].ended)
        found.append(GaugeMetricFamily("astune_last_commit_age_seconds", "Since the last commit ended.", age))
    found.append(GaugeMetricFamily("astune_release_open", "1 while a version is tested.", release is not None))
    if release is not None:
        look = (release.figures.get("looks") or [{}])[-1]
        alarms = len(look.get("alarms", ())) + len(look.get("breaches", ()))
        found += [
            GaugeMetricFamily("astune_release_stage", "Of the open release, from 1; 0: before.", release.stage + 1),
            GaugeMetricFamily("astune_release_share", "Of the users that get the challenger.", release.share),
            GaugeMetricFamily("astune_release_alarms", "That the last look at the open release found.", alarms),
            GaugeMetricFamily(
                "astune_release_stage_age_seconds", "Since its stage began.", max(0.0, now - release.stage_began)
            ),
        ]
    ended = CounterMetricFamily("astune_releases_ended", "Releases, by how they ended.", labels=["state"])
    counts = releases.count_ended(connection)
    for state in ("promoted", "held", "rolled_back"):
        ended.add_metric([state], counts.get(state, 0))
    return [*found, ended]


def _gauge(name: str, meaning: str, label: str, values: Iterable[tuple[str, float]]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, meaning, labels=[label])
    for which, value in values:
        family.add_metric([which], value)
    return family
