"""Which conversations and exchanges an export takes."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import sqlalchemy as sa

from astune.store.tables import requests

TOGETHER = 100
"""Conversations that are read with one statement."""


@dataclass(frozen=True)
class ExportFilter:
    """What is taken: answers of this time (seconds since 1970, `until` excluded), by this version, to this user. None:
    any."""

    since: float | None = None
    until: float | None = None
    version: int | None = None
    user: str | None = None

    def takes(self, answered: float, version: int, user: str | None) -> bool:
        """Whether an episode is taken, by its last answer.

        >>> ExportFilter(since=2.0, version=1).takes(2.0, 1, None), ExportFilter(until=2.0).takes(2.0, 1, None)
        (True, False)
        """
        return (
            (self.since is None or answered >= self.since)
            and (self.until is None or answered < self.until)
            and self.version in (None, version)
            and self.user in (None, user)
        )

    def of_rows(self) -> list[sa.ColumnElement[bool]]:
        """The same of a row of `requests`."""
        said = []
        if self.since is not None:
            said.append(requests.c.answered >= self.since)
        if self.until is not None:
            said.append(requests.c.answered < self.until)
        if self.version is not None:
            said.append(requests.c.version == self.version)
        if self.user is not None:
            said.append(requests.c.user == self.user)
        return said


def exchanges(
    connection: sa.Connection, wanted: ExportFilter, without: Collection[str]
) -> Iterator[tuple[str, list[str]]]:
    """The conversation of each exchange that has a wanted answer, and the ids of all its answers, in the order of
    conversations; less those with an answer that is in `without`."""
    some = sa.select(requests.c.conversation_id).where(*wanted.of_rows()).distinct()
    conversations = connection.scalars(some.order_by(requests.c.conversation_id)).all()
    for start in range(0, len(conversations), TOGETHER):
        part = conversations[start : start + TOGETHER]
        rows = connection.execute(
            sa.select(requests.c.conversation_id, requests.c.exchange, requests.c.msg_id)
            .where(requests.c.conversation_id.in_(part))
            .order_by(requests.c.conversation_id, requests.c.number)
        )
        found: dict[tuple[str, str], list[str]] = {}
        for conversation, exchange, msg_id in rows:
            found.setdefault((conversation, exchange), []).append(msg_id)
        for (conversation, _), msg_ids in found.items():
            if not any(msg_id in without for msg_id in msg_ids):
                yield conversation, msg_ids
