"""The servers that answer: a row from the start of each to its end, with a sign of life now and then. And what they
count: requests by minute, server and version, failed ones too, which have no row of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from typing import Literal

import sqlalchemy as sa

from astune.online.store.leases import has_ended
from astune.online.store.once import insert_or_add
from astune.store.tables import servers, traffic

State = Literal["serving", "draining"]
SILENT_SECONDS = 60.0
"""A server that was not heard of for so long counts as gone."""
FORGOTTEN_SECONDS = 86400.0
"""After so long its row is deleted."""


@dataclass(frozen=True)
class ServerRow:
    """`versions` are those that it holds in memory. Times are in seconds since 1970."""

    name: str
    url: str
    began: float
    heard: float
    state: str
    versions: tuple[int, ...]

    def is_there(self, now: float) -> bool:
        return now - self.heard <= SILENT_SECONDS and not has_ended(self.name)


def beat(
    connection: sa.Connection, name: str, url: str, began: float, state: State, versions: Sequence[int], now: float
) -> None:
    """Write that the server is there, and delete the rows of those that ended long ago."""
    row = {"name": name, "url": url, "began": began, "heard": now, "state": state, "versions": list(versions)}
    if not connection.execute(servers.update().where(servers.c.name == name), row).rowcount:
        connection.execute(servers.insert(), row)
    connection.execute(servers.delete().where(servers.c.heard < now - FORGOTTEN_SECONDS))


def leave(connection: sa.Connection, name: str) -> None:
    connection.execute(servers.delete().where(servers.c.name == name))


def every_server(connection: sa.Connection) -> list[ServerRow]:
    """Load the rows of all servers, those of dead ones too, the oldest first."""
    rows = connection.execute(servers.select().order_by(servers.c.began, servers.c.name))
    return [ServerRow(row.name, row.url, row.began, row.heard, row.state, tuple(row.versions)) for row in rows]


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
