"""Turn a row of a data set into a `Task`; shared by all readers of tables.

>>> RowMapping(FieldsConfig()).record({"question": "6 * 12?", "answer": "72"}, "gsm8k.jsonl:1").task.query
'6 * 12?'
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from astune.config.tasks import FieldsConfig
from astune.errors import ConfigError, TaskError, nearest
from astune.support.file_kinds import LINES, Kind, instead, kind_of
from astune.task_reader.fields import FieldPath, Selector, names, parse_selector, plain, show
from astune.task_reader.task_reader_base import Row
from astune.types import Task

QUERY_COLUMNS = ("query", "question")
TASK_ID_COLUMNS = ("task_id", "id")
_ENCODER = json.JSONEncoder(sort_keys=True, default=plain)
ROLES = ("system", "developer", "user", "assistant", "tool")


class Record(NamedTuple):
    """A task and the row it was made from. `has_id=False`: the row has no id, the task's is made from the content."""

    task: Task
    row: Row
    has_id: bool


class RowMapping:
    """`astune.task_reader.fields`, ready to be applied. A path, template or expression in it that cannot be read is a
    `ConfigError` at birth, before any row is."""

    def __init__(self, fields: FieldsConfig) -> None:
        self._task_id = _Source("task_id", fields.task_id, TASK_ID_COLUMNS, template=True)
        self._query = _Source("query", fields.query, QUERY_COLUMNS, template=True)
        self._answer = _Source("answer", fields.answer, ("answer",), template=True)
        self._answer_regex = _pattern(fields.answer_regex)
        self._messages = _Source("messages", fields.messages, ("messages",))
        self._env_type = _Source("env_type", fields.env_type, ("env_type",))
        self._metadata = fields.metadata
        self._mapped = {"has_query": fields.query is not None, "has_answer": fields.answer is not None}

    def record(self, row: Row, place: str) -> Record:
        """`place` is where the row stands, such as `file.jsonl:3`. Raises `TaskError` that begins with it.

        A row without an id gets one made from its content, so it keeps its id wherever in the data set it stands.
        """
        _check_kind(row, place, **self._mapped)
        task_id = self._read_id(row, place)
        messages = self._conversation(row, place)
        env_type = self._environment(row, place)
        task = Task(
            task_id=_id_from_content(row, place) if task_id is None else task_id,
            query=self._question(row, messages, env_type, place),
            messages=messages,
            answer=self._reference(row, place),
            env_type=env_type,
            metadata=self._keep_columns(row, place),
            place=place,
        )
        return Record(task, row, task_id is not None)

    def _read_id(self, row: Row, place: str) -> str | None:
        source = self._task_id.of(row)
        if source is None:
            return None
        value = source.value(row, place)
        if not isinstance(value, str | int) or isinstance(value, bool) or value == "":
            raise TaskError(f"{place}: {source.described} must hold an id, text or a whole number, found {show(value)}")
        return str(value)

    def _question(self, row: Row, messages: tuple[Row, ...], env_type: str | None, place: str) -> str:
        """The question; of a row with nothing but a conversation, what the user said last in it. Empty where an
        environment asks."""
        source = self._query.of(row)
        if source is None:
            return _last_user_text(row, messages, place, needed=env_type is None)
        value = source.value(row, place)
        if not isinstance(value, str):
            raise TaskError(f"{place}: {source.described} must hold the question as text, found {show(value)}")
        if not value.strip():
            raise TaskError(f"{place}: the query in {source.described} is empty")
        return value

    def _reference(self, row: Row, place: str) -> str | None:
        source = self._answer.of(row)
        value = None if source is None else source.value(row, place)
        if self._answer_regex is not None and source is None and "answer" not in row:
            raise TaskError(
                f"{place}: astune.task_reader.fields.answer_regex is set, and there is no column 'answer'; name the "
                f"column with astune.task_reader.fields.answer; the row has {names(row)}"
            )
        if source is None or value is None:
            return None
        if not isinstance(value, str | int | float):
            raise TaskError(
                f"{place}: {source.described} must hold text, a number or a truth value, found {show(value)}"
            )
        return self._extract(str(value), place)

    def _extract(self, answer: str, place: str) -> str:
        """Extract the part of the answer that `answer_regex` finds: its first group, or all that matches if it has
        none."""
        if self._answer_regex is None:
            return answer
        found = self._answer_regex.search(answer)
        value = None if found is None else found[min(1, self._answer_regex.groups)]
        if value is None:
            raise TaskError(
                f"{place}: astune.task_reader.fields.answer_regex {self._answer_regex.pattern!r} "
                f"finds nothing in the answer, {show(answer)}"
            )
        return value

    def _conversation(self, row: Row, place: str) -> tuple[Row, ...]:
        source = self._messages.of(row)
        value = None if source is None else source.value(row, place)
        if source is None or value is None:
            return ()
        if not isinstance(value, list):
            raise TaskError(f"{place}: {source.described} must hold a list of messages, found {show(value)}")
        return tuple(_message(message, f"{place}: {source.text}[{index}]") for index, message in enumerate(value))

    def _environment(self, row: Row, place: str) -> str | None:
        source = self._env_type.of(row)
        value = None if source is None else source.value(row, place)
        if source is None or value is None:
            return None
        if not isinstance(value, str) or not value:
            raise TaskError(f"{place}: {source.described} must hold a type of environment as text, found {show(value)}")
        return value

    def _keep_columns(self, row: Row, place: str) -> Row:
        if self._metadata is None:
            return dict(row)
        for name in self._metadata:
            if name not in row:
                raise TaskError(
                    f"{place}: no column {name!r}, which astune.task_reader.fields.metadata names; "
                    f"the row has {names(row)}.{nearest(name, row)}"
                )
        return {name: row[name] for name in self._metadata}


class _Source:
    """The place of one key's value in a row: the configured one, else the first default column that has a value."""

    def __init__(self, key: str, configured: str | None, defaults: tuple[str, ...], *, template: bool = False) -> None:
        self._configured = None if configured is None else parse_selector(configured, key, template=template)
        self._defaults = () if configured else tuple((name, FieldPath.parse(name, key)) for name in defaults)

    def of(self, row: Row) -> Selector | None:
        for name, path in self._defaults:
            if row.get(name) is not None:
                return path
        return self._configured


def _check_kind(row: Row, place: str, *, has_query: bool, has_answer: bool) -> None:
    """Raises `TaskError` for a row of a file that ASTune wrote or reads for something else, as what that calls an
    answer is not the task's; unless `astune.task_reader.fields` says where the query and the answer are."""
    kind = kind_of(row)
    if kind in (None, Kind.TASKS, Kind.LABELLED) or (has_query and (has_answer or "answer" not in row)):
        return
    fields = ("query", "answer") if "answer" in row else ("query",)
    keys = " and ".join(f"astune.task_reader.fields.{name}" for name in fields)
    hint = f". To make tasks of it, set {keys}" if kind in LINES else ""
    if kind is Kind.EPISODES:
        hint = (
            ". Its 'answer' is what the policy said; its task is in 'task': to play that again, set "
            "astune.task_reader.fields to {task_id: task.task_id, query: task.query, answer: task.answer}"
        )
    raise TaskError(f"{place}: {instead(kind, 'tasks')}{hint}")


def _pattern(regex: str | None) -> re.Pattern[str] | None:
    try:
        return None if regex is None else re.compile(regex)
    except re.error as error:
        raise ConfigError(
            f"astune.task_reader.fields.answer_regex: {regex!r} is no regular expression: {error}"
        ) from error


def _last_user_text(row: Row, messages: tuple[Row, ...], place: str, *, needed: bool) -> str:
    texts = [message["content"] for message in messages if message["role"] == "user"]
    if texts and isinstance(texts[-1], str) and texts[-1].strip():
        return texts[-1]
    if not needed:
        return ""
    if messages:
        raise TaskError(f"{place}: no query: there is no column 'query' and 'messages' hold no text of a user")
    hint = next((found for name in QUERY_COLUMNS if (found := nearest(name, row))), "")
    raise TaskError(
        f"{place}: no query: the row has {names(row)}, none of 'query', 'question', 'messages' with a value.{hint} "
        "Name the column with astune.task_reader.fields.query"
    )


def _message(message: Any, place: str) -> Row:
    """The message without null entries, which table formats add to give all rows the same columns."""
    if not isinstance(message, Mapping):
        raise TaskError(f"{place} must be an object with 'role' and 'content', found {show(message)}")
    if message.get("role") not in ROLES:
        raise TaskError(f"{place}.role must be one of {', '.join(ROLES)}, found {show(message.get('role'))}")
    content = message.get("content")
    if not isinstance(content, str | list) and not (content is None and message.get("tool_calls")):
        raise TaskError(f"{place}.content must be text or a list of parts, found {show(content)}")
    kept = {key: value for key, value in message.items() if value is not None}
    return {**kept, "content": content}


def _id_from_content(row: Row, place: str) -> str:
    """16 hexadecimal digits that depend on the names and values in the row and on nothing else."""
    try:
        content = _ENCODER.encode(row)
    except TypeError as error:
        raise TaskError(
            f"{place}: cannot make a task id from {error}; name a column of ids with astune.task_reader.fields.task_id"
        ) from error
    return hashlib.sha256(content.encode()).hexdigest()[:16]
