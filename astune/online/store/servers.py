"""The servers that answer: a row from the start of each to its end, with a sign of life now and then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import sqlalchemy as sa

from astune.online.store.leases import has_ended
from astune.store.tables import servers

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
