"""Tool calls as models write them, and the helpers that every format needs to read them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from astune.context_tracker.prompt.messages import parse_arguments

Tools = Sequence[Mapping[str, Any]]
_JSON = json.JSONDecoder()
_SPACE = re.compile(r"\s*")


@dataclass(frozen=True)
class WrittenCall:
    """One call as the model wrote it; `arguments` is the JSON text of an object.

    `call_id` is the id the model wrote, in the formats that have one (Mistral's).
    """

    name: str
    arguments: str
    call_id: str | None = None


@dataclass(frozen=True)
class ParsedMessage:
    """A parsed answer. `reasoning` is "" for an empty reasoning block and None where there is no block."""

    content: str | None
    reasoning: str | None
    tool_calls: tuple[WrittenCall, ...]


Found = tuple[int, int, tuple[WrittenCall, ...]]
"""Calls, and the range `[start, stop)` of the text that says them."""


def take_out(text: str, found: Iterable[Found]) -> tuple[str, tuple[WrittenCall, ...]]:
    """The text without what was found, and all calls. Without any, the text is unchanged to the last space.

    >>> take_out("Wait. <f/>", [(6, 10, (WrittenCall("f", "{}"),))])
    ('Wait.', (WrittenCall(name='f', arguments='{}', call_id=None),))
    """
    rest: list[str] = []
    calls: list[WrittenCall] = []
    position = 0
    for start, stop, group in found:
        if start < position:  # inside a call, as one of its arguments
            continue
        rest.append(text[position:start])
        calls.extend(group)
        position = stop
    if not calls:
        return text, ()
    rest.append(text[position:])
    return join_pieces(rest), tuple(calls)


def join_pieces(pieces: Iterable[str]) -> str:
    """Stretches of content that something stood between, as one text."""
    return "\n".join(piece.strip() for piece in pieces if piece.strip())


def make_call(name: str, arguments: str, call_id: str | None = None) -> WrittenCall | None:
    """The call, None unless it has a name and `arguments` is the JSON text of an object."""
    return WrittenCall(name, arguments, call_id) if name and parse_arguments(arguments) is not None else None


def end_of_json(text: str, position: int) -> int | None:
    """The end of the JSON value that starts at `position`; None if none starts there."""
    try:
        return _JSON.raw_decode(text, position)[1]
    except (ValueError, RecursionError):
        return None


def object_slices(text: str) -> dict[str, str] | None:
    """The JSON text of each value of the object that `text` is; None if it is not one well-formed object.

    >>> object_slices('{"name": "f", "arguments": {"x":1e2}}')
    {'name': '"f"', 'arguments': '{"x":1e2}'}
    """
    stripped = text.strip()
    if parse_arguments(stripped) is None:
        return None
    fields = {}
    position = skip_space(stripped, 1)
    while stripped[position] != "}":
        key, position = _JSON.raw_decode(stripped, position)
        start = skip_space(stripped, skip_space(stripped, position) + 1)  # past the colon
        _, position = _JSON.raw_decode(stripped, start)
        fields[key] = stripped[start:position]
        position = _next_item(stripped, position)
    return fields


def array_slices(text: str) -> list[str] | None:
    """The JSON text of each item of the array that `text` is; None if it is not one well-formed array."""
    if not text.startswith("[") or end_of_json(text, 0) != len(text):
        return None
    items = []
    position = skip_space(text, 1)
    while text[position] != "]":
        _, stop = _JSON.raw_decode(text, position)
        items.append(text[position:stop])
        position = _next_item(text, stop)
    return items


def _next_item(text: str, position: int) -> int:
    """Past white space and a comma."""
    position = skip_space(text, position)
    return skip_space(text, position + 1) if text[position] == "," else position


def skip_space(text: str, position: int) -> int:
    """The first position from `position` on that is not white space."""
    found = _SPACE.match(text, position)
    return found.end() if found else position


def read_json_call(text: str, arguments_key: str, others: frozenset[str] | None = None) -> WrittenCall | None:
    """`{"name": "f", <arguments_key>: {...}}`; of other keys it may have those in `others`, any if that is None.

    The arguments keep the text the model wrote; an "id" that is a string becomes the call's.
    """
    fields = object_slices(text)
    needed = {"name", arguments_key}
    if fields is None or not needed <= fields.keys() or not (others is None or fields.keys() <= needed | others):
        return None
    name, call_id = json.loads(fields["name"]), json.loads(fields.get("id", "null"))
    if not isinstance(name, str):
        return None
    return make_call(name, fields[arguments_key], call_id if isinstance(call_id, str) else None)


def parameters_of(name: str, tools: Tools) -> Any:
    """The JSON Schema of the tool's arguments; None if there is no such tool, or it says nothing of them."""
    return next((tool["function"].get("parameters") for tool in tools if tool["function"]["name"] == name), None)
