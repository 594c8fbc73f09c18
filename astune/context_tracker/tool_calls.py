"""Reading an answer's text: reasoning, content and tool calls, in the formats that chat templates teach.

A parser takes out what is well-formed and leaves everything else in the text: nothing is guessed or lost.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from astune.context_tracker.messages import parse_arguments

Tools = Sequence[Mapping[str, Any]]
_TOOL_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_FUNCTION = re.compile(r"\s*<function=([^<>\n]+)>(.*)</function>\s*", re.DOTALL)
_PARAMETER = re.compile(r"\s*<parameter=([^<>\n]+)>(.*?)</parameter>", re.DOTALL)
_JSON = json.JSONDecoder()
_SPACE = re.compile(r"\s*")


@dataclass(frozen=True)
class ToolCall:
    """One call as the model wrote it; `arguments` is the JSON text of an object."""

    name: str
    arguments: str


@dataclass(frozen=True)
class ParsedMessage:
    """An answer taken apart. `reasoning` is "" for an empty reasoning block and None where there is no block."""

    content: str | None
    reasoning: str | None
    tool_calls: tuple[ToolCall, ...]


def read_hermes(block: str, tools: Tools) -> ToolCall | None:
    """`{"name": "f", "arguments": {...}}`: Hermes, Qwen2.5, Qwen3. The arguments keep the text the model wrote."""
    fields = _object_slices(block)
    if fields is None or not {"name", "arguments"} <= fields.keys():
        return None
    name = json.loads(fields["name"])
    if not isinstance(name, str) or not name or parse_arguments(fields["arguments"]) is None:
        return None
    return ToolCall(name, fields["arguments"])


def _object_slices(text: str) -> dict[str, str] | None:
    """The JSON text of each value of the object that `text` is; None if it is not one well-formed object."""
    stripped = text.strip()
    if parse_arguments(stripped) is None:
        return None
    fields = {}
    position = _skip(stripped, 1)
    while stripped[position] != "}":
        key, position = _JSON.raw_decode(stripped, position)
        start = _skip(stripped, _skip(stripped, position) + 1)  # past the colon
        _, position = _JSON.raw_decode(stripped, start)
        fields[key] = stripped[start:position]
        position = _skip(stripped, position)
        if stripped[position] == ",":
            position = _skip(stripped, position + 1)
    return fields


def _skip(text: str, position: int) -> int:
    """The first position from `position` on that is not white space."""
    found = _SPACE.match(text, position)
    return found.end() if found else position


def read_qwen3_coder(block: str, tools: Tools) -> ToolCall | None:
    """`<function=f><parameter=x>1</parameter></function>`: Qwen3-Coder, Qwen3.5 and later.

    The format does not tell the string "1" from the number 1: the tool's schema does. A parameter whose
    schema does not say is a string.
    """
    function = _FUNCTION.fullmatch(block)
    if function is None:
        return None
    name, body = function.groups()
    schema = _parameters_of(name, tools)
    arguments: dict[str, Any] = {}
    position = 0
    for parameter in _PARAMETER.finditer(body):
        if parameter.start() != position:
            return None
        position = parameter.end()
        key, value = parameter.groups()
        text = value.removeprefix("\n").removesuffix("\n")
        arguments[key] = _typed(text, schema.get(key, {}))
    return None if body[position:].strip() else ToolCall(name, json.dumps(arguments, ensure_ascii=False))


def _parameters_of(name: str, tools: Tools) -> Mapping[str, Any]:
    for tool in tools:
        if tool["function"]["name"] == name:
            properties: Mapping[str, Any] = tool["function"].get("parameters", {}).get("properties", {})
            return properties
    return {}


def _typed(text: str, schema: Mapping[str, Any]) -> Any:
    """`text` as the value its schema asks for; text that is not such a value stays a string."""
    types = _types(schema)
    if text == "null" and "null" in types:
        return None
    if not types or "string" in types:
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _types(schema: Mapping[str, Any]) -> set[str]:
    """The JSON types a schema allows, as far as `type` and `anyOf` say."""
    own = schema.get("type", [])
    types = {own} if isinstance(own, str) else set(own)
    return types.union(*(_types(choice) for choice in schema.get("anyOf", ())))


READERS: dict[str, Callable[[str, Tools], ToolCall | None]] = {
    "hermes": read_hermes,
    "qwen3_coder": read_qwen3_coder,
}


def detect_format(template: str) -> str:
    """The format that a chat template teaches: a key of `READERS`, or "none"."""
    if "<tool_call>" not in template or "<arg_key>" in template:
        return "none"
    if "<function=" in template:
        return "qwen3_coder"
    return "hermes" if "arguments" in template else "none"


def split_tool_calls(text: str, form: str, tools: Tools = ()) -> tuple[str, tuple[ToolCall, ...]]:
    """The text without its well-formed tool calls, and the calls.

    >>> split_tool_calls('Wait. <tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>', "hermes")
    ('Wait.', (ToolCall(name='f', arguments='{"x": 1}'),))
    """
    if form == "none":
        return text, ()
    calls = []
    rest = []
    position = 0
    for block in _TOOL_CALL.finditer(text):
        call = READERS[form](block.group(1), tools)
        if call is not None:
            calls.append(call)
            rest.append(text[position : block.start()])
            position = block.end()
    if not calls:
        return text, ()
    rest.append(text[position:])
    return "\n".join(piece.strip() for piece in rest if piece.strip()), tuple(calls)


def split_reasoning(text: str, *, opened: bool) -> tuple[str | None, str]:
    """The reasoning and the text after it. `opened` says that the prompt already ends inside `<think>`.

    >>> split_reasoning("<think>\\nHm.\\n</think>\\n\\nYes.", opened=False)
    ('Hm.', 'Yes.')
    """
    start = text.lstrip()
    if not opened and not start.startswith("<think>"):
        return None, text
    inside = start.removeprefix("<think>") if start.startswith("<think>") else text
    reasoning, _, after = inside.partition("</think>")
    return reasoning.strip("\n"), after.lstrip("\n")
