"""Gemma 4: calls in a notation of its own, strings between `<|"|>` marks, keys bare."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from astune.context_tracker.prompt.answer_formats.base import ReasoningMarks, TextFormat
from astune.context_tracker.prompt.tool_calls import Found, Tools, WrittenCall, make_call, take_out

_CALL = re.compile(r"<\|tool_call>call:([^{}<>\s]+)(?=\{)")
_END = "<tool_call|>"
_QUOTE = '<|"|>'
_KEY = re.compile(r"([^:{}\[\],<>]+):")
_PLAIN = re.compile(r"[^,:{}\[\]<>]+")


class Gemma4(TextFormat):
    """`<|tool_call>call:f{x:1,city:<|"|>Ulm<|"|>}<tool_call|>`; the tool's answer follows in the same turn."""

    name = "gemma4"
    reasoning = (ReasoningMarks("<|channel>thought", "<channel|>", "\n<channel|>"),)
    stops = ("<turn|>", "<|tool_response>")
    next_openings = ("<|tool_response>",)

    def is_taught_by(self, template: str) -> bool:
        return "<|tool_call>call:" in template

    def split_calls(self, text: str, tools: Tools) -> tuple[str, tuple[WrittenCall, ...]]:
        return take_out(text, self._found(text))

    def _found(self, text: str) -> Iterator[Found]:
        for mark in _CALL.finditer(text):
            try:
                arguments, stop = _read_object(text, mark.end())
            except (ValueError, RecursionError):
                continue
            call = make_call(mark.group(1), json.dumps(arguments, ensure_ascii=False))
            if call is not None and text.startswith(_END, stop):
                yield mark.start(), stop + len(_END), (call,)

    def call_start(self, tool: str | None) -> str:
        return "<|tool_call>call:" if tool is None else f"<|tool_call>call:{tool}{{"


def _read_value(text: str, position: int) -> tuple[Any, int]:
    """The value at `position` and where it ends. Raises ValueError if it is malformed."""
    if text.startswith("{", position):
        return _read_object(text, position)
    if text.startswith("[", position):
        return _read_list(text, position)
    if text.startswith(_QUOTE, position):
        start = position + len(_QUOTE)
        stop = text.index(_QUOTE, start)
        return text[start:stop], stop + len(_QUOTE)
    plain = _PLAIN.match(text, position)
    if plain is None:
        raise ValueError("no value")
    return json.loads(plain.group()), plain.end()


def _read_object(text: str, position: int) -> tuple[dict[str, Any], int]:
    out: dict[str, Any] = {}
    position += 1
    while not text.startswith("}", position):
        position = _past_comma(text, position) if out else position
        key = _KEY.match(text, position)
        if key is None:
            raise ValueError("no key")
        out[key.group(1)], position = _read_value(text, key.end())
    return out, position + 1


def _read_list(text: str, position: int) -> tuple[list[Any], int]:
    out: list[Any] = []
    position += 1
    while not text.startswith("]", position):
        value, position = _read_value(text, _past_comma(text, position) if out else position)
        out.append(value)
    return out, position + 1


def _past_comma(text: str, position: int) -> int:
    if not text.startswith(",", position):
        raise ValueError("no comma")
    return position + 1
