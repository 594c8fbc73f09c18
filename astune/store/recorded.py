"""Recorded answers with their tokens, put together again from what each adds to the one before."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import sqlalchemy as sa

from astune.store.tables import requests, turns
from astune.token_ids import TokenIds
from astune.types import Turn

MOST_VALUES = 500
"""In one statement; a database has a limit."""


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
    for some in _chunks(msg_ids):
        for row in connection.execute(sa.select(*_HEADING).where(requests.c.msg_id.in_(some))):
            found[row.msg_id] = Heading(*row)
    return found


def recorded_answers(connection: sa.Connection, msg_ids: Iterable[str]) -> dict[str, RecordedAnswer]:
    """All answers of the conversations that `msg_ids` belong to, by msg_id."""
    found: dict[str, RecordedAnswer] = {}
    conversations: list[str] = []
    for some in _chunks(msg_ids):
        conversations += connection.scalars(
            sa.select(requests.c.conversation_id).distinct().where(requests.c.msg_id.in_(some))
        )
    for some in _chunks(conversations):
        rows = connection.execute(
            requests.select()
            .where(requests.c.conversation_id.in_(some))
            .order_by(requests.c.conversation_id, requests.c.number)
        ).all()
        made = _turns(connection, some)
        for row in rows:
            found[row.msg_id] = _answer(row, found, tuple(made.get(row.msg_id, ())))
    return found


def _answer(
    row: sa.Row[Any], found: Mapping[str, RecordedAnswer], made: tuple[tuple[int, Turn], ...]
) -> RecordedAnswer:
    before = found.get(row.follows or "")
    kept: tuple[Mapping[str, Any], ...] = ()
    if before is not None:
        said = before.turns[0][1].response if before.turns else {}
        kept = (*before.messages, said)[: row.messages_kept]
    tools = (before.tools if before is not None else ()) if row.tools is None else tuple(row.tools)
    heading = Heading(*(getattr(row, name) for name in Heading.__dataclass_fields__))
    return RecordedAnswer(heading, (*kept, *row.messages), tools, made)


def _turns(connection: sa.Connection, conversations: list[str]) -> dict[str, list[tuple[int, Turn]]]:
    """Those of all requests of these conversations, by msg_id."""
    rows = connection.execute(
        sa.select(turns, requests.c.agent)
        .join(requests, requests.c.msg_id == turns.c.msg_id)
        .where(requests.c.conversation_id.in_(conversations))
        .order_by(turns.c.id)
    )
    whole: dict[int, TokenIds] = {}
    found: dict[str, list[tuple[int, Turn]]] = {}
    for row in rows:
        prompt = _unpacked(row.prompt_ids)
        if row.prompt_of is not None:
            before = whole[row.prompt_of]
            kept = before if row.prompt_kept == len(before) else TokenIds(before[: row.prompt_kept])
            prompt = kept + prompt
        output = _unpacked(row.output_ids)
        whole[row.id] = prompt + output
        turn = Turn(
            row.agent,
            prompt,
            output,
            np.frombuffer(row.logprobs, "<f8").tolist(),
            row.policy_version,
            row.finish_reason,
            temperature=row.temperature,
            excluded=row.excluded,
            exact=row.exact,
            fork=row.fork,
            response=row.response,
        )
        found.setdefault(row.msg_id, []).append((row.id, turn))
    return found


def _unpacked(data: bytes) -> TokenIds:
    return TokenIds(array("i", np.frombuffer(data, "<i4").astype("i").tobytes()))


def _chunks(values: Iterable[str]) -> Iterable[list[str]]:
    distinct = list(dict.fromkeys(values))
    for start in range(0, len(distinct), MOST_VALUES):
        yield distinct[start : start + MOST_VALUES]
