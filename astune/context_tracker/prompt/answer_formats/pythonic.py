"""Calls in Python's notation: LFM2, MiniCPM 3 and 4."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from astune.context_tracker.prompt.answer_formats.base import THINK, MarkedCalls, ReasoningMarks
from astune.context_tracker.prompt.tool_calls import WrittenCall, make_call, skip_space

_BEGIN, _END = "<|tool_call_start|>", "<|tool_call_end|>"
_BLOCK = re.compile(rf"{re.escape(_BEGIN)}\s*(?P<fence>```(?:python)?\n)?\s*(?P<list>\[)?")
_NAME = re.compile(r"\s*([\w.-]+)\s*\(")
_KEY = re.compile(r"\s*(\w+)\s*=")
_STRING = re.compile(r"""'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)\"""", re.DOTALL)
_ESCAPE = re.compile(r"""\\(?:x[\da-fA-F]{2}|u[\da-fA-F]{4}|U[\da-fA-F]{8}|[0-3]?[0-7]{1,2}|[abfnrtv\\'"\n])""")
_WORD = re.compile(r"[^\s,:=()\[\]{}'\"]+")
_INTEGER = re.compile(r"[+-]?\d+")
_FLOAT = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_CONSTANTS = {"None": None, "True": True, "False": False, "null": None, "true": True, "false": False}


class Lfm2(MarkedCalls):
    """`<|tool_call_start|>[f(x=1), g()]<|tool_call_end|>`. Arguments have names and are literals, Python's or JSON's.

    A block of calls is read as a whole: one malformed call leaves all of it in the text.
    """

    name = "lfm2"
    lead: ClassVar[tuple[str, str, str]] = ("[", ", ", "]")
    """The texts before, between and after the calls."""
    call_marks = (_BEGIN,)
    signs: ClassVar[tuple[str, ...]] = (_BEGIN, "<|tool_list_start|>")
    opening = _BLOCK

    def read_calls(self, text: str, mark: re.Match[str]) -> tuple[int, list[WrittenCall]] | None:
        """All calls of a block. The text may end in place of the end mark."""
        calls: list[WrittenCall] = []
        position = mark.end()
        try:
            while _NAME.match(text, position):
                call, position = _read_call(text, position)
                calls.append(call)
                position = skip_space(text, position)
                position += text.startswith((",", ";"), position)
        except (ValueError, SyntaxError, RecursionError):
            return None
        for end in (mark["list"] and "]", mark["fence"] and "```", _END):
            position = skip_space(text, position)
            if end and text.startswith(end, position):
                position += len(end)
            elif end and (end != _END or position < len(text)):
                return None
        return (position, calls) if calls else None

    def call_start(self, tool: str | None) -> str:
        start = _BEGIN + self.lead[0]
        return start if tool is None else f"{start}{tool}("

    def write_calls(self, calls: Sequence[WrittenCall]) -> str | None:
        before, between, after = self.lead
        return _BEGIN + before + between.join(map(_write_call, calls)) + after + _END


class MiniCpm(Lfm2):
    """`<|tool_call_start|>`, a python code block with a line `f(x=1)` for each call, `<|tool_call_end|>`."""

    name = "minicpm"
    reasoning = (ReasoningMarks("<|thought_start|>", "<|thought_end|>", "\n<|thought_end|>\n"), THINK)
    lead = ("\n```python\n", "\n", "\n```\n")
    signs = (_BEGIN + lead[0],)

    def for_template(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """MiniCPM 3 wants the reasoning as `thought`."""
        return {"thought": message.get("thinking"), **message}


def _write_call(call: WrittenCall) -> str:
    arguments = json.loads(call.arguments)
    return f"{call.name}({', '.join(f'{key}={_literal(value)}' for key, value in arguments.items())})"


def _literal(value: Any) -> str:
    """Python's notation for a value, JSON's for text and what is nested."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str | list | dict) else repr(value)


def _read_call(code: str, position: int) -> tuple[WrittenCall, int]:
    name = _NAME.match(code, position)
    if name is None:
        raise ValueError("no call")
    position = name.end()
    arguments: dict[str, Any] = {}
    while not code.startswith(")", position := skip_space(code, position)):
        position = _past_comma(code, position) if arguments else position
        key = _KEY.match(code, position)
        if key is None:
            raise ValueError("no name of an argument")
        arguments[key.group(1)], position = _read_literal(code, key.end())
    call = make_call(name.group(1), json.dumps(arguments, ensure_ascii=False))
    if call is None:
        raise ValueError("no JSON")
    return call, position + 1


def _read_literal(text: str, position: int = 0) -> tuple[Any, int]:
    """The value at `position` and where it ends; raises ValueError or SyntaxError if it is malformed."""
    position = skip_space(text, position)
    if text.startswith("{", position):
        return _read_dict(text, position + 1)
    if text.startswith(("[", "("), position):
        return _read_list(text, position + 1, "]" if text[position] == "[" else ")")
    string = _STRING.match(text, position)
    if string is not None:
        inside = string.group(1) if string.group(2) is None else string.group(2)
        return _ESCAPE.sub(lambda escape: str(ast.literal_eval(f"'{escape.group()}'")), inside), string.end()
    word = _WORD.match(text, position)
    if word is None:
        raise ValueError("no value")
    if word.group() in _CONSTANTS:
        return _CONSTANTS[word.group()], word.end()
    if _INTEGER.fullmatch(word.group()):
        return int(word.group()), word.end()
    if _FLOAT.fullmatch(word.group()):
        return float(word.group()), word.end()
    raise ValueError("no number")


def _past_comma(text: str, position: int) -> int:
    """The first position after the comma at `position` that is not white space; raises ValueError if there is none."""
    if not text.startswith(",", position):
        raise ValueError("no comma")
    return skip_space(text, position + 1)


def _read_dict(text: str, position: int) -> tuple[dict[str, Any], int]:
    out: dict[str, Any] = {}
    while not text.startswith("}", position := skip_space(text, position)):
        key, position = _read_literal(text, _past_comma(text, position) if out else position)
        position = skip_space(text, position)
        if not isinstance(key, str) or not text.startswith(":", position):
            raise ValueError("no key")
        out[key], position = _read_literal(text, position + 1)
    return out, position + 1


def _read_list(text: str, position: int, end: str) -> tuple[list[Any], int]:
    out: list[Any] = []
    while not text.startswith(end, position := skip_space(text, position)):
        value, position = _read_literal(text, _past_comma(text, position) if out else position)
        out.append(value)
    return out, position + 1
