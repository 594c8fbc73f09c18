"""Recorded answers as training reads them: the requests of a conversation with the row ids of their turns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from astune.online.store.answers import chunks
from astune.online.store.requests import RecordedRequest, began, load_conversation
from astune.store.tables import requests, turns
from astune.types import Turn


@dataclass(frozen=True)
class Heading:
    """A recorded answer without its texts. `version` gave it, at `answered` seconds since 1970."""

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
    """`messages` and `tools` are those of the request, whole. `turns` has one turn for each choice, with its row id.
    `began` is the time at which the conversation began. `histories` are digests of the conversation up to and with each
    of `turns`; `after` is the digest up to the answer that it follows."""

    heading: Heading
    messages: Sequence[Mapping[str, Any]]
    tools: tuple[Mapping[str, Any], ...]
    turns: tuple[tuple[int, Turn], ...]
    began: float
    histories: tuple[str, ...]
    after: str | None


_PLAIN = tuple(name for name in Heading.__dataclass_fields__ if name not in ("number", "follows"))
_HEADING = [requests.c[name] for name in Heading.__dataclass_fields__]


def load_headings(connection: sa.Connection, msg_ids: Iterable[str]) -> dict[str, Heading]:
    """Load them by msg_id. Unknown ids are left out."""
    found: dict[str, Heading] = {}
    for some in chunks(msg_ids):
        for row in connection.execute(sa.select(*_HEADING).where(requests.c.msg_id.in_(some))):
            found[row.msg_id] = Heading(*row)
    return found


def load_recorded(connection: sa.Connection, msg_ids: Iterable[str]) -> dict[str, RecordedAnswer]:
    """Load whole answers by msg_id. Unknown ids are left out."""
    known = load_headings(connection, msg_ids)
    numbers: dict[tuple[str, int], int] = {}
    for some in chunks(known):
        rows = sa.select(turns.c.msg_id, turns.c.choice, turns.c.id).where(turns.c.msg_id.in_(some))
        numbers |= {(msg_id, choice): number for msg_id, choice, number in connection.execute(rows)}
    found: dict[str, RecordedAnswer] = {}
    for conversation in dict.fromkeys(heading.conversation_id for heading in known.values()):
        loaded = answers_in(load_conversation(connection, conversation), lambda *place: numbers.get(place, 0))
        found |= {msg_id: answer for msg_id, answer in loaded.items() if msg_id in known}
    return found


def answers_in(conversation: Sequence[RecordedRequest], number: Callable[[str, int], int]) -> dict[str, RecordedAnswer]:
    """The answers of a whole conversation, by msg_id. `number` gives the row id of a turn from its msg_id and
    choice."""
    first = began(conversation) if conversation else 0.0
    histories = {
        (request.msg_id, choice): each.history for request in conversation for choice, each in enumerate(request.turns)
    }
    found: dict[str, RecordedAnswer] = {}
    for place, request in enumerate(conversation):
        plain = {name: getattr(request, name) for name in _PLAIN}
        follows = None if request.follows is None else request.follows.msg_id
        found[request.msg_id] = RecordedAnswer(
            Heading(**plain, number=place, follows=follows),
            request.messages,
            request.tools,
            tuple((number(request.msg_id, choice), each.turn) for choice, each in enumerate(request.turns)),
            first,
            tuple(each.history for each in request.turns),
            None if request.follows is None else histories[request.follows],
        )
    return found
