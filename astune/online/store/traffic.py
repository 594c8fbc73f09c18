"""Counts of requests by minute, server and version, failed ones too, which have no row of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, fields

import sqlalchemy as sa

from astune.online.store.once import insert_or_add
from astune.store.tables import traffic


@dataclass
class Traffic:
    """`errors` are requests that failed by no fault of the caller, `empty` answers without text or tool call, `slow`
    requests that took longer than `astune.online.serve.slow_seconds`. `tool_failures` are results that say that a call
    went wrong, as far as the next request brings them. `tokens` are those of prompts and answers."""

    requests: int = 0
    errors: int = 0
    empty: int = 0
    slow: int = 0
    tool_calls: int = 0
    tool_failures: int = 0
    tokens: int = 0
    seconds: float = 0.0

    def add(self, other: Traffic) -> None:
        for field, more in zip(fields(self), astuple(other), strict=True):
            setattr(self, field.name, getattr(self, field.name) + more)


def add_traffic(connection: sa.Connection, server: str, counts: Mapping[tuple[int, int], Traffic]) -> None:
    """Add to the rows of a server; the keys are minutes since 1970 and versions."""
    for (minute, version), count in counts.items():
        key = {"minute": minute, "server": server, "version": version}
        insert_or_add(connection, traffic, key, vars(count))


def traffic_of(connection: sa.Connection, version: int, since: float = 0.0) -> Traffic:
    """The sums of a version over all servers, of the minutes from `since` on, in seconds since 1970."""
    columns = [sa.func.coalesce(sa.func.sum(traffic.c[field.name]), 0).label(field.name) for field in fields(Traffic)]
    chosen = sa.select(*columns).where(traffic.c.version == version, traffic.c.minute >= int(since // 60))
    return Traffic(**connection.execute(chosen).one()._mapping)
