"""The state of a small world of apps, and how two states differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any

CALENDAR_TIME = "%Y-%m-%d %H:%M"


@dataclass
class Contact:
    name: str
    email: str
    phone: str = ""
    group: str = ""


@dataclass
class Event:
    title: str
    start: datetime
    minutes: int
    attendees: dict[str, str] = field(default_factory=dict)
    """Mail address to answer: `yes`, `no` or `waiting`."""


@dataclass
class Mail:
    folder: str
    sender: str
    to: list[str]
    subject: str
    body: str
    sent: datetime
    unread: bool = False
    attachments: dict[str, str] = field(default_factory=dict)
    """Name to content: a copy of the file that was attached."""
    reply_to: int | None = None


@dataclass
class File:
    content: str
    modified: datetime


@dataclass
class World:
    """All there is. Files are keyed by path, everything else by a number that is never used twice."""

    name: str
    email: str
    now: datetime
    contacts: dict[int, Contact] = field(default_factory=dict)
    events: dict[int, Event] = field(default_factory=dict)
    mails: dict[int, Mail] = field(default_factory=dict)
    files: dict[str, File] = field(default_factory=dict)
    answer: str | None = None
    """The answer that the agent ended with; None while it works."""
    last_id: int = 100

    def new_id(self) -> int:
        self.last_id += 1
        return self.last_id


TABLES = {"contact": "contacts", "event": "events", "mail": "mails", "file": "files"}
"""The name of a record, and the field of `World` that has them."""


def changes(start: World, end: World) -> Counter[str]:
    """Each difference of two states as a sentence. New records are told by their content, not by the number they got.

    >>> start = World("Ada", "ada@home.example", datetime(2026, 3, 2), contacts={1: Contact("Bo", "bo@x.example")})
    >>> end = World("Ada", "ada@home.example", datetime(2026, 3, 2), files={"/a": File("x", datetime(2026, 3, 2))})
    >>> sorted(changes(start, end))
    ['contact 1 is gone', "new file '/a': content 'x', modified 2026-03-02 00:00"]
    """
    found: Counter[str] = Counter()
    for noun, table in TABLES.items():
        found.update(_changes_of(noun, getattr(start, table), getattr(end, table)))
    return found


def _changes_of(noun: str, before: Mapping[Any, Any], after: Mapping[Any, Any]) -> Iterator[str]:
    for key in before.keys() - after.keys():
        yield f"{noun} {key!r} is gone"
    for key, record in after.items():
        shown = _show(record)
        if key not in before:
            which = f"new {noun} {key!r}" if isinstance(key, str) else f"new {noun}"
            yield f"{which}: " + ", ".join(f"{name} {value}" for name, value in shown.items())
        elif record != before[key]:
            old = _show(before[key])
            yield from (f"{noun} {key!r}: {name} is {value}" for name, value in shown.items() if value != old[name])


def _show(record: Any) -> dict[str, str]:
    """Field to value, without what makes no difference: blanks at the ends of texts, the order of people."""
    return {part.name: _text(getattr(record, part.name)) for part in fields(record)}


def _text(value: Any) -> str:
    if isinstance(value, datetime):
        return value.strftime(CALENDAR_TIME)
    if isinstance(value, dict):
        return repr(dict(sorted(value.items())))
    if isinstance(value, list):
        return repr(sorted(value))
    return repr(value.strip() if isinstance(value, str) else value)
