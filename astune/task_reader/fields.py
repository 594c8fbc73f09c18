"""Take from a row what a key of `astune.task_reader.fields` names: a column, a path into it, or a template.

>>> row = {"question": "Which?", "data": {"options": ["red", "blue"]}}
>>> Template.parse("{question}\\n{data.options:letters}", "query").value(row, "train.jsonl:1")
'Which?\\nA. red\\nB. blue'
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from string import ascii_uppercase
from typing import Any, TypeAlias

from astune.errors import ConfigError, TaskError, nearest
from astune.task_reader.task_reader_base import Row

FORMATS = ("lines", "letters")
_STEP = re.compile(r'\[(?P<index>-?\d+)\]|\["(?P<quoted>[^"]*)"\]|(?P<dot>\.?)(?P<name>[^.\[\]{}"]+)')
_PART = re.compile(
    r'(?P<escape>\{\{|\}\})|\{(?P<path>(?:\["[^"]*"\]|[^{}:])*)(?::(?P<format>[^{}]*))?\}|(?P<text>[^{}]+)'
)


@dataclass(frozen=True)
class FieldPath:
    """A column, as `question`, or a place in one, as `data.turns[0]`, `data.turns[-1].text`, `data["odd name"]`.

    A column of exactly that name wins over the path.
    """

    text: str
    key: str
    steps: tuple[str | int, ...]

    @classmethod
    def parse(cls, text: str, key: str) -> FieldPath:
        """`key` is the one of `astune.task_reader.fields` that holds `text`. Raises `ConfigError` that names it."""
        steps: list[str | int] = []
        end = 0
        while found := _STEP.match(text, end):
            if found["name"] is not None and bool(found["dot"]) != bool(steps):
                break
            index, name = found["index"], found["quoted"] if found["name"] is None else found["name"]
            steps.append(name if index is None else int(index))
            end = found.end()
        if end < len(text) or not steps or isinstance(steps[0], int):
            raise ConfigError(
                f"astune.task_reader.fields.{key}: {text!r} is no column or path, from {text[end:]!r} on; "
                f'expected a path as data.turns[0]; a column that is called {text!r} is written ["{text}"]'
            )
        return cls(text, key, tuple(steps))

    @property
    def described(self) -> str:
        return f"column {self.text!r}"

    def value(self, row: Row, place: str) -> Any:
        """Raises `TaskError` that begins with `place` and names what there is instead."""
        if self.text in row:
            return row[self.text]
        value: Any = row
        for depth, step in enumerate(self.steps):
            if isinstance(step, int):
                fits = isinstance(value, list | tuple) and -len(value) <= step < len(value)
            else:
                fits = isinstance(value, Mapping) and step in value
            if not fits:
                raise TaskError(f"{place}: {self._missing(depth, value)}")
            value = value[step]
        return value

    def _missing(self, depth: int, value: Any) -> str:
        key, step = f"astune.task_reader.fields.{self.key}", self.steps[depth]
        if depth == 0:
            assert isinstance(value, Mapping), "a row is a mapping"
            return f"no column {step!r}, which {key} names; the row has {names(value)}.{nearest(str(step), value)}"
        there = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.steps[:depth])[1:]
        said = f"{key} names {self.text!r}, but {there!r}"
        if isinstance(step, int) and isinstance(value, list | tuple):
            return f"{said} has {len(value)} entries, none [{step}]"
        if isinstance(step, str) and isinstance(value, Mapping):
            return f"{said} has {names(value)}, no {step!r}.{nearest(step, value)}"
        return f"{said} must hold {'a list' if isinstance(step, int) else 'an object'}, found {show(value)}"


@dataclass(frozen=True)
class Template:
    """Text with paths in braces, as `{question}\\nOptions: {options}`; `{{` and `}}` are braces themselves.

    Text and numbers are put in as they are, lists and objects as JSON. Of a list, `{options:lines}` puts each entry on
    a line of its own, `{options:letters}` with A., B., C. before it.
    """

    text: str
    parts: tuple[str | tuple[FieldPath, str | None], ...]

    @classmethod
    def parse(cls, text: str, key: str) -> Template:
        """`key` is the one of `astune.task_reader.fields` that holds `text`. Raises `ConfigError` that names it."""
        parts: list[str | tuple[FieldPath, str | None]] = []
        end = 0
        while found := _PART.match(text, end):
            if found["path"] is None:
                parts.append(found["text"] if found["escape"] is None else found["escape"][0])
            else:
                if (form := found["format"]) not in (None, *FORMATS):
                    raise ConfigError(
                        f"astune.task_reader.fields.{key}: unknown format {form!r} in {found[0]!r}; "
                        f"there are {', '.join(FORMATS)}.{nearest(form, FORMATS)}"
                    )
                parts.append((FieldPath.parse(found["path"], key), form))
            end = found.end()
        if end < len(text):
            raise ConfigError(
                f"astune.task_reader.fields.{key}: template {text!r} has a single {text[end]!r} at "
                f"{text[end : end + 20]!r}; write it twice to mean the brace itself"
            )
        return cls(text, tuple(parts))

    @property
    def described(self) -> str:
        return f"template {self.text!r}"

    def value(self, row: Row, place: str) -> str:
        """Raises `TaskError` that begins with `place`."""
        return "".join(part if isinstance(part, str) else _render(*part, row, place) for part in self.parts)


Selector: TypeAlias = FieldPath | Template


def parse_selector(text: str, key: str, *, template: bool = False) -> Selector:
    """The column, path or, where it has a `{`, template in `text`. Raises `ConfigError` that names the key."""
    if "{" not in text:
        return FieldPath.parse(text, key)
    if not template:
        raise ConfigError(f"astune.task_reader.fields.{key}: {text!r} is a template, expected a column or a path")
    return Template.parse(text, key)


def _render(path: FieldPath, form: str | None, row: Row, place: str) -> str:
    value = path.value(row, place)
    if form is None:
        return _write_text(value, path, place)
    if not isinstance(value, list | tuple):
        raise TaskError(f"{place}: {path.described} must hold a list for :{form}, found {show(value)}")
    entries = [_write_text(entry, path, place) for entry in value]
    if form == "lines":
        return "\n".join(entries)
    if len(entries) > len(ascii_uppercase):
        raise TaskError(f"{place}: {path.described} has {len(entries)} entries, and there are 26 letters")
    return "\n".join(f"{letter}. {entry}" for letter, entry in zip(ascii_uppercase, entries, strict=False))


def _write_text(value: Any, path: FieldPath, place: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int | float):
        return str(value)
    if value is None or isinstance(value, bytes):
        raise TaskError(f"{place}: {path.described} must hold something to write into a template, found {show(value)}")
    try:
        if isinstance(value, Mapping | list | tuple):
            return json.dumps(value, ensure_ascii=False, default=plain)
        return str(plain(value))
    except TypeError as error:
        raise TaskError(f"{place}: {path.described} cannot be written into a template: {error}") from error


def plain(value: Any) -> str:
    """Text for values of tables that JSON does not have. Raises `TypeError` for all others."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, date | datetime | time | timedelta | Decimal):
        return str(value)
    raise TypeError(f"a value of type {type(value).__name__}")


def names(row: Row) -> str:
    return ", ".join(repr(name) for name in row) if row else "no columns"


def show(value: Any) -> str:
    """The value with its type, short."""
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"
