"""From a row of a data set to a `Task`; shared by all readers of tables.

>>> rows = [("gsm8k.jsonl:1", {"question": "6 * 12?", "answer": "#### 72"})]
>>> tasks_from_rows(rows, FieldsConfig())[0].query
'6 * 12?'
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import islice
from typing import Any

from astune.config.tasks import FieldsConfig
from astune.errors import TaskError, nearest
from astune.types import Task

QUERY_COLUMNS = ("query", "question")
TASK_ID_COLUMNS = ("task_id", "id")
ROLES = ("system", "developer", "user", "assistant", "tool")

Row = Mapping[str, Any]


def tasks_from_rows(rows: Iterable[tuple[str, Row]], fields: FieldsConfig, limit: int | None = None) -> list[Task]:
    """Tasks of the first `limit` rows (None: all). Each row comes with its place, such as `file.jsonl:3`.

    Ids are unique in the result. A row without an id gets one made from its content, so it keeps its id wherever
    in the data set it stands; equal rows get -2, -3 and so on. Raises `TaskError` with the place of the bad row.
    """
    tasks: list[Task] = []
    places: dict[str, str] = {}
    copies: dict[str, int] = {}
    for place, row in islice(rows, limit):
        task_id = _given_id(row, fields, place)
        if task_id is None:
            made = _id_from_content(row, place)
            copies[made] = copies.get(made, 0) + 1
            task_id = made if copies[made] == 1 else f"{made}-{copies[made]}"
        if task_id in places:
            raise TaskError(f"{place}: task id {task_id!r} is already used at {places[task_id]}; ids must be unique")
        places[task_id] = place
        tasks.append(_task(task_id, row, fields, place))
    return tasks


def _task(task_id: str, row: Row, fields: FieldsConfig, place: str) -> Task:
    messages = _messages(row, fields, place)
    return Task(
        task_id=task_id,
        query=_query(row, fields, messages, place),
        messages=messages,
        answer=_answer(row, fields, place),
        metadata=dict(row),
    )


def _column(row: Row, configured: str | None, key: str, defaults: tuple[str, ...], place: str) -> str | None:
    """Name of the column that holds `astune.task_reader.fields.<key>`; None if nothing is configured and no
    column has one of the default names."""
    if configured is None:
        return next((name for name in defaults if row.get(name) is not None), None)
    if configured not in row:
        raise TaskError(
            f"{place}: no column {configured!r}, which astune.task_reader.fields.{key} names; "
            f"the row has {_names(row)}.{nearest(configured, row)}"
        )
    return configured


def _given_id(row: Row, fields: FieldsConfig, place: str) -> str | None:
    column = _column(row, fields.task_id, "task_id", TASK_ID_COLUMNS, place)
    if column is None:
        return None
    value = row[column]
    if not isinstance(value, str | int) or isinstance(value, bool) or value == "":
        raise TaskError(f"{place}: column {column!r} must hold an id, text or a whole number, found {_show(value)}")
    return str(value)


def _query(row: Row, fields: FieldsConfig, messages: tuple[Row, ...], place: str) -> str:
    """The question; of a row with nothing but a conversation, what the user said last in it."""
    column = _column(row, fields.query, "query", QUERY_COLUMNS, place)
    if column is None:
        return _last_user_text(row, messages, place)
    value = row[column]
    if not isinstance(value, str):
        raise TaskError(f"{place}: column {column!r} must hold the question as text, found {_show(value)}")
    if not value.strip():
        raise TaskError(f"{place}: the query in column {column!r} is empty")
    return value


def _last_user_text(row: Row, messages: tuple[Row, ...], place: str) -> str:
    texts = [message["content"] for message in messages if message["role"] == "user"]
    if texts and isinstance(texts[-1], str) and texts[-1].strip():
        return texts[-1]
    if messages:
        raise TaskError(f"{place}: no query: there is no column 'query' and 'messages' hold no text of a user")
    hint = next((found for name in QUERY_COLUMNS if (found := nearest(name, row))), "")
    raise TaskError(
        f"{place}: no query: the row has {_names(row)}, none of 'query', 'question', 'messages' with a value.{hint} "
        "Name the column with astune.task_reader.fields.query"
    )


def _answer(row: Row, fields: FieldsConfig, place: str) -> str | None:
    column = _column(row, fields.answer, "answer", ("answer",), place)
    if column is None:
        return None
    value = row[column]
    if value is not None and not isinstance(value, str | int | float):
        raise TaskError(f"{place}: column {column!r} must hold text, a number or a truth value, found {_show(value)}")
    return None if value is None else str(value)


def _messages(row: Row, fields: FieldsConfig, place: str) -> tuple[Row, ...]:
    column = _column(row, fields.messages, "messages", ("messages",), place)
    if column is None or row[column] is None:
        return ()
    value = row[column]
    if not isinstance(value, list):
        raise TaskError(f"{place}: column {column!r} must hold a list of messages, found {_show(value)}")
    return tuple(_message(message, f"{place}: {column}[{index}]") for index, message in enumerate(value))


def _message(message: Any, place: str) -> Row:
    """The message without null entries, which table formats add to give all rows the same columns."""
    if not isinstance(message, Mapping):
        raise TaskError(f"{place} must be an object with 'role' and 'content', found {_show(message)}")
    if message.get("role") not in ROLES:
        raise TaskError(f"{place}.role must be one of {', '.join(ROLES)}, found {_show(message.get('role'))}")
    content = message.get("content")
    if not isinstance(content, str | list) and not (content is None and message.get("tool_calls")):
        raise TaskError(f"{place}.content must be text or a list of parts, found {_show(content)}")
    kept = {key: value for key, value in message.items() if value is not None}
    return {**kept, "content": content}


def _id_from_content(row: Row, place: str) -> str:
    """16 hexadecimal digits that depend on the names and values in the row and on nothing else."""

    def plain(value: Any) -> str:
        if isinstance(value, bytes):
            return value.hex()
        if isinstance(value, date | datetime | time | timedelta | Decimal):
            return str(value)
        raise TaskError(
            f"{place}: cannot make a task id from a value of type {type(value).__name__}; "
            "name a column of ids with astune.task_reader.fields.task_id"
        )

    content = json.dumps(row, sort_keys=True, default=plain)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _names(row: Row) -> str:
    return ", ".join(repr(name) for name in row) if row else "no columns"


def _show(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"
