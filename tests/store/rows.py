"""Rows for tests: what is not said has a plain value of its type."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from astune.store.database import Database
from astune.store.tables import (
    commits,
    conversations,
    episode_messages,
    episodes,
    exposures,
    feedback,
    feedback_messages,
    metadata,
    requests,
    samples,
    turns,
    versions,
)

PLAIN: dict[type, Any] = {int: 0, float: 0.0, str: "", bytes: b"", bool: False, dict: {}}


def add(connection: sa.Connection, table: sa.Table, **values: Any) -> int:
    """Insert a row. Returns its number, where it has one."""
    for column in table.columns:
        wanted = not column.nullable and column.autoincrement is not True and column.name not in values
        if wanted:
            values[column.name] = {} if isinstance(column.type, sa.JSON) else PLAIN[column.type.python_type]
    key = connection.execute(table.insert().values(values)).inserted_primary_key
    return int(key[0]) if key is not None and isinstance(key[0], int) else 0


def ids(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}i", *numbers)


def add_request(
    connection: sa.Connection, msg_id: str, conversation: str, text: str, *, user: str | None = None, **values: Any
) -> int:
    """A request with one answer of the conversation, which is made if it is not there. Returns the turn's number."""
    there = sa.select(sa.func.count()).select_from(requests).where(requests.c.conversation_id == conversation)
    number = connection.scalar(there)
    if not number:
        key = f"{user}:{conversation}"
        named = {name: values.get(name) for name in ("task_id", "run_id")}
        last = values.get("answered", 0.0)
        add(connection, conversations, conversation_id=conversation, key=key, user=user, last=last, **named)
    values = {"exchange": msg_id, "agent": "solver", "model": "astune", **values}
    messages = [{"role": "user", "content": text}]
    add(
        connection,
        requests,
        msg_id=msg_id,
        conversation_id=conversation,
        number=number,
        user=user,
        messages=messages,
        **values,
    )
    return add(
        connection,
        turns,
        msg_id=msg_id,
        prompt_ids=ids(*text.encode()),
        output_ids=ids(7, 8),
        logprobs=struct.pack("<2d", -0.5, -1.5),
        policy_version=values.get("version", 0),
        finish_reason="stop",
        temperature=1.0,
        exact=True,
        response={"role": "assistant", "content": f"answer to {text}"},
        history=f"{msg_id} digest",
    )


def add_feedback(connection: sa.Connection, author: str, msg_ids: Sequence[str], **values: Any) -> int:
    values = {"kind": "number", "name": "reward", "state": "counts", "fingerprint": "f", "target": "t", **values}
    number = add(connection, feedback, author=author, **values)
    for msg_id in msg_ids:
        add(connection, feedback_messages, feedback_id=number, msg_id=msg_id, place="about")
    return number


def add_version(
    connection: sa.Connection, version: int, parent: int | None, trained: dict[str, tuple[int, Sequence[str]]]
) -> None:
    """A version, and the commit that made it of `trained`: by the episode's id the turn and the messages."""
    commit = add(connection, commits, by="hand", state="made", version=version, base_version=parent)
    add(connection, versions, version=version, parent=parent, commit_id=commit, figures={"loss": 0.5})
    for name, (turn, msg_ids) in trained.items():
        owner = connection.scalar(sa.select(requests.c.conversation_id).where(requests.c.msg_id == msg_ids[0]))
        values = {"conversation_id": owner, "reward": 1.0, "state": "trained"}
        add(connection, episodes, episode_id=name, commit_id=commit, **values)
        for msg_id in msg_ids:
            add(connection, episode_messages, episode_id=name, msg_id=msg_id)
        weight = {"method": "policy", "advantage": 0.5, "weight": 0.25, "tokens": 2}
        add(connection, samples, commit_id=commit, episode_id=name, turn_id=turn, **weight)
        add(connection, exposures, conversation_id=owner, version=version)


def cells(database: Database) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table."""
    with database.reading() as connection:
        return {
            name: [tuple(row) for row in connection.execute(sa.select(table).order_by(*table.primary_key))]
            for name, table in metadata.tables.items()
        }
