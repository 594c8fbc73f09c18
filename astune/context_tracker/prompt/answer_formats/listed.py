"""Calls in JSON between marks, in a list or in a row: Apriel, Apertus, Granite 3, Nemotron Nano v2, Cohere."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from astune.context_tracker.prompt.answer_formats.base import MarkedCalls, ReasoningMarks
from astune.context_tracker.prompt.tool_calls import (
    ParsedMessage,
    Tools,
    WrittenCall,
    array_slices,
    end_of_json,
    make_call,
    object_slices,
    skip_space,
)

_TEXT_MARKS = re.compile(r"^<\|START_(?:TEXT|RESPONSE)\|>|<\|END_(?:TEXT|RESPONSE)\|>$")


class ListedCalls(MarkedCalls):
    """`<calls>[{"name": "f", "arguments": {...}}, ...]</calls>`. A subclass says the marks and the keys.

    The block is read as a whole: one malformed call leaves all of it in the text.
    """

    marks: ClassVar[tuple[str, str]]
    """The texts around the calls. The answer may end in place of the second."""
    keys: ClassVar[tuple[str, str, str]] = ("name", "arguments", "id")
    """The keys of a call's name, arguments and id; the id may be missing."""
    item_start: ClassVar[str] = "["
    """The text between the mark and the first call."""

    def __init_subclass__(cls) -> None:
        cls.call_marks = cls.marks[:1]

    def __init__(self) -> None:
        self.opening = re.compile(re.escape(self.marks[0]))

    def read_calls(self, text: str, mark: re.Match[str]) -> tuple[int, list[WrittenCall]] | None:
        items, stop = _read_items(text, skip_space(text, mark.end()))
        calls = [self.read_item(item) for item in items]
        known = [call for call in calls if call is not None]
        end = self.marks[1]
        closed = text.startswith(end, stop)
        if not known or len(known) < len(calls) or not (closed or stop == len(text)):
            return None
        return stop + len(end) * closed, known

    def read_item(self, text: str) -> WrittenCall | None:
        """The call that one JSON text is, None if it is malformed."""
        name_key, arguments_key, id_key = self.keys
        fields = object_slices(text)
        if fields is None or not {name_key, arguments_key} <= fields.keys():
            return None
        name, call_id = json.loads(fields[name_key]), json.loads(fields.get(id_key, "null"))
        if not isinstance(name, str):
            return None
        return make_call(name, fields[arguments_key], call_id if isinstance(call_id, str) else None)

    def call_start(self, tool: str | None) -> str:
        start = f'{self.marks[0]}{self.item_start}{{"{self.keys[0]}": "'
        return start if tool is None else f'{start}{tool}", "{self.keys[1]}":'

    def write_calls(self, calls: Sequence[WrittenCall]) -> str | None:
        name_key, arguments_key, _ = self.keys
        items = [f'{{"{name_key}": {json.dumps(call.name)}, "{arguments_key}": {call.arguments}}}' for call in calls]
        written = f"[{', '.join(items)}]" if self.item_start == "[" else self.item_start + "\n".join(items)
        return self.marks[0] + written + self.marks[1]


def _read_items(text: str, position: int) -> tuple[list[str], int]:
    """The JSON texts of the list at `position`, or of the values one after the other, and where they and the white
    space after them end."""
    stop = end_of_json(text, position)
    if stop is not None and text[position] == "[":
        return array_slices(text[position:stop]) or [], skip_space(text, stop)
    items = []
    while stop is not None:
        items.append(text[position:stop])
        position = skip_space(text, stop)
        stop = end_of_json(text, position)
    return items, position


class Apriel(ListedCalls):
    """`<tool_calls>[{"name": "f", "arguments": {...}, "id": "..."}]</tool_calls>`: Apriel, Hunyuan A13B, Jamba."""

    name = "apriel"
    marks = ("<tool_calls>", "</tool_calls>")


class MiniMaxM1(ListedCalls):
    """`<tool_calls>`, a line of `{"name": "f", "arguments": {...}}` for each call, `</tool_calls>`."""

    name = "minimax_m1"
    marks = ("<tool_calls>", "</tool_calls>")
    item_start = "\n"


class Granite3(ListedCalls):
    """`<|tool_call|>[{"name": "f", "arguments": {...}}]` up to the end of the answer: Granite 3."""

    name = "granite"
    marks = ("<|tool_call|>", "")
    signs = ("<|tool_call|>",)


class NemotronNano2(ListedCalls):
    """`<TOOLCALL>[{"name": "f", "arguments": {...}}]</TOOLCALL>`: Nemotron Nano v2."""

    name = "nemotron_nano"
    marks = ("<TOOLCALL>", "</TOOLCALL>")


class GigaChat(ListedCalls):
    """`<|function_call|>{"name": "f", "arguments": {...}}`, one call per answer: GigaChat 3.1."""

    name = "gigachat"
    marks = ("<|function_call|>", "")
    item_start = ""


class Cohere(ListedCalls):
    """`<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "f", "parameters": {...}}]<|END_ACTION|>`: Command R7B, A.

    Text stands between marks, too.
    """

    name = "cohere"
    reasoning = (ReasoningMarks("<|START_THINKING|>", "<|END_THINKING|>", "<|END_THINKING|>"),)
    marks = ("<|START_ACTION|>", "<|END_ACTION|>")
    keys = ("tool_name", "parameters", "tool_call_id")

    def read(self, text: str, tools: Tools | None = None, opened: ReasoningMarks | None = None) -> ParsedMessage:
        said = super().read(text, tools, opened)
        return said if said.content is None else replace(said, content=_TEXT_MARKS.sub("", said.content) or None)

    def call_start(self, tool: str | None) -> str:
        start = f'{self.marks[0]}[\n    {{"tool_call_id": "0", "tool_name": "'
        return start if tool is None else f'{start}{tool}", "parameters":'


class Apertus(ListedCalls):
    """`<|tools_prefix|>[{"f": {...}}, {"g": {...}}]<|tools_suffix|>`; the results follow in the same turn."""

    name = "apertus"
    reasoning = (ReasoningMarks("<|inner_prefix|>", "<|inner_suffix|>", "<|inner_suffix|>"),)
    marks = ("<|tools_prefix|>", "<|tools_suffix|>")
    stops = ("<|tools_suffix|>", "<|assistant_end|>")

    def for_template(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """A call without any content would leave the list of results before it open."""
        return {**message, "content": message["content"] or ""} if message.get("tool_calls") else message

    def read_item(self, text: str) -> WrittenCall | None:
        fields = object_slices(text)
        return make_call(*next(iter(fields.items()))) if fields and len(fields) == 1 else None

    def call_start(self, tool: str | None) -> str:
        start = f'{self.marks[0]}[{{"'
        return start if tool is None else f'{start}{tool}":'
