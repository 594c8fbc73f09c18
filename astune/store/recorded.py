"""Recorded answers as training reads them: the requests of a conversation, and the numbers of their turns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from astune.store.answers import chunks
from astune.store.requests import load_conversation
from astune.store.tables import requests, turns
from astune.types import Turn


@dataclass(frozen=True)
class Heading:
    """A recorded answer, less what was said. `version` answered it, at `answered` seconds since 1970."""

    msg_id: str
    conversation_id: str
    number: int
    follows: str | None
    agent: str
    client: str
    user: str | None
    task_id: str | None
    run_id: str | None
    model: str
    version: int
    answered: float


@dataclass(frozen=True)
class RecordedAnswer:
    """`messages` and `tools` are what was sent, whole. `turns` has one for each choice, with its number in the
    database."""

    heading: Heading
    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[Mapping[str, Any], ...]
    turns: tuple[tuple[int, Turn], ...]


_HEADING = [requests.c[name] for name in Heading.__dataclass_fields__]


def headings(connection: sa.Connection, msg_ids: Iterable[str]) -> dict[str, Heading]:
    """By msg_id; those that are not known are not in it."""
    found: dict[str, Heading] = {}
    for some in chunks(msg_ids):
        for row in connection.execute(sa.select(*_HEADING).where(requests.c.msg_id.in_(some))):
            found[row.msg_id] = Heading(*row)
    return found


def recorded_answers(connection: sa.Connection, msg_ids: Iterable[str]) -> dict[str, RecordedAnswer]:
    """Those of the answers `msg_ids` that are known, whole again, by msg_id."""
    known = headings(connection, msg_ids)
    numbers: dict[str, list[int]] = {}
    for some in chunks(known):
        rows = sa.select(turns.c.msg_id, turns.c.id).where(turns.c.msg_id.in_(some))
        for msg_id, number in connection.execute(rows.order_by(turns.c.msg_id, turns.c.choice)):
            numbers.setdefault(msg_id, []).append(number)
    found: dict[str, RecordedAnswer] = {}
    for conversation in dict.fromkeys(heading.conversation_id for heading in known.values()):
        for request in load_conversation(connection, conversation):
            heading = known.get(request.msg_id)
            if heading is not None:
                said = zip(numbers[request.msg_id], (each.turn for each in request.turns), strict=True)
                found[request.msg_id] = RecordedAnswer(heading, request.messages, request.tools, tuple(said))
    return found
