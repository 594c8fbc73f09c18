"""Gemma 4: calls in a notation of its own, strings between `<|"|>` marks, keys bare."""

from __future__ import annotations

import json
import re
from typing import Any

from astune.context_tracker.prompt.answer_formats.base import MarkedCalls, ReasoningMarks
from astune.context_tracker.prompt.tool_calls import WrittenCall, make_call

_CALL = re.compile(r"<\|tool_call>call:([^{}<>\s]+)(?=\{)")
_START, _END = "<|tool_call>", "<tool_call|>"
_QUOTE = '<|"|>'
_MARK = re.compile("|".join(map(re.escape, (_START, _END, _QUOTE))))
_CLOSING_QUOTE = re.compile(re.escape(_QUOTE) + r"(?=[,}\]])")
_MOST_READINGS = 100
_KEY = re.compile(r"([^:{}\[\],<>]+):")
_PLAIN = re.compile(r"[^,:{}\[\]<>]+")


class Gemma4(MarkedCalls):
    """`<|tool_call>call:f{x:1,city:<|"|>Ulm<|"|>}<tool_call|>`; the tool's answer follows in the same turn."""

    name = "gemma4"
    reasoning = (ReasoningMarks("<|channel>thought", "<channel|>", "\n<channel|>"),)
    call_marks = (_START, _END)
    stops = ("<turn|>", "<|tool_response>")
    next_openings = ("<|tool_response>",)
    opening = _CALL

    def read_calls(self, text: str, mark: re.Match[str]) -> tuple[int, list[WrittenCall]] | None:
        read = _read_arguments(text, mark.end(), whole=True) or _read_arguments(text, mark.end(), whole=False)
        if read is None:
            return None
        arguments, stop = read
        call = make_call(mark.group(1), json.dumps(arguments, ensure_ascii=False))
        return None if call is None else (stop, [call])

    def call_start(self, tool: str | None) -> str:
        return "<|tool_call>call:" if tool is None else f"<|tool_call>call:{tool}{{"


def _read_arguments(text: str, position: int, *, whole: bool) -> tuple[dict[str, Any], int] | None:
    """The arguments that begin at `position` and the end of the call. `whole`: no mark is left over after it, as there
    is where the call ends in one of its own strings."""
    quotes = _Quotes(text)
    for _ in range(_MOST_READINGS):
        try:
            arguments, stop = _read_object(text, position, quotes)
        except RecursionError:
            return None
        except ValueError:
            stop = -1
        if stop >= 0 and text.startswith(_END, stop):
            left = _MARK.search(text, stop + len(_END))
            if not whole or left is None or left.group() == _START:
                return arguments, stop + len(_END)
        if not quotes.move():
            return None
    return None


class _Quotes:
    """Finds the ends of strings. A string may hold the mark that ends it. So a mark that nothing can follow ends none,
    and if the rest does not read after another mark, the next one is tried."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._stops: list[int] = []
        """The end of each string read so far."""
        self._number = 0

    def stop(self, start: int) -> int:
        """The end of the string that begins at `start`."""
        if self._number == len(self._stops):
            self._stops.append(self._next(start))
        self._number += 1
        if self._stops[self._number - 1] < 0:
            raise ValueError("no end of the string")
        return self._stops[self._number - 1]

    def move(self) -> bool:
        """Begin anew with the next reading; whether there is one."""
        self._number = 0
        while self._stops:
            last = self._stops.pop()
            if last >= 0 and (later := self._next(last + 1)) >= 0:
                self._stops.append(later)
                return True
        return False

    def _next(self, position: int) -> int:
        found = _CLOSING_QUOTE.search(self._text, position)
        return -1 if found is None else found.start()


def _read_value(text: str, position: int, quotes: _Quotes) -> tuple[Any, int]:
    """The value at `position` and where it ends. Raises ValueError if it is malformed."""
    if text.startswith("{", position):
        return _read_object(text, position, quotes)
    if text.startswith("[", position):
        return _read_list(text, position, quotes)
    if text.startswith(_QUOTE, position):
        start = position + len(_QUOTE)
        stop = quotes.stop(start)
        return text[start:stop], stop + len(_QUOTE)
    plain = _PLAIN.match(text, position)
    if plain is None:
        raise ValueError("no value")
    return json.loads(plain.group()), plain.end()


def _read_object(text: str, position: int, quotes: _Quotes) -> tuple[dict[str, Any], int]:
    out: dict[str, Any] = {}
    position += 1
    while not text.startswith("}", position):
        position = _past_comma(text, position) if out else position
        key = _KEY.match(text, position)
        if key is None or key.group(1) in out:
            raise ValueError("no new key")
        out[key.group(1)], position = _read_value(text, key.end(), quotes)
    return out, position + 1


def _read_list(text: str, position: int, quotes: _Quotes) -> tuple[list[Any], int]:
    out: list[Any] = []
    position += 1
    while not text.startswith("]", position):
        value, position = _read_value(text, _past_comma(text, position) if out else position, quotes)
        out.append(value)
    return out, position + 1


def _past_comma(text: str, position: int) -> int:
    if not text.startswith(",", position):
        raise ValueError("no comma")
    return position + 1
