"""Calls that are a name and then JSON, between marks: Kimi K2, Hunyuan, functionary."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import ClassVar

from astune.context_tracker.prompt.answer_formats.base import TextFormat
from astune.context_tracker.prompt.tool_calls import Found, Tools, WrittenCall, end_of_json, make_call, take_out


class NamedCalls(TextFormat):
    """`<calls><call>f<sep>{...}</call></calls>`. A subclass says the marks; white space around them does not count.

    A block of calls is read as a whole: one malformed call leaves all of it in the text.
    """

    block: ClassVar[tuple[str, str]] = ("", "")
    """The texts around all calls. The answer may end in place of the second."""
    call: ClassVar[tuple[str, str, str]]
    """The texts before the name of a call, between name and arguments, and after the arguments."""
    name_pattern: ClassVar[str] = r"(?P<name>[^\s<>{}]+)"
    """May have a group `id`, too."""

    def __init__(self) -> None:
        before, between, after = map(_allow_space, self.call)
        self._begin = re.compile(_allow_space(self.block[0]) or before)
        self._head = re.compile(rf"\s*{before}\s*{self.name_pattern}\s*{between}\s*")
        self._tail = re.compile(rf"\s*{after}")
        self._end = re.compile(rf"\s*{_allow_space(self.block[1])}" + (r"|\s*\Z" if self.block[1] else ""))

    def split_calls(self, text: str, tools: Tools) -> tuple[str, tuple[WrittenCall, ...]]:
        return take_out(text, self._found(text))

    def _found(self, text: str) -> Iterator[Found]:
        for begin in self._begin.finditer(text):
            position = begin.end() if self.block[0] else begin.start()
            calls = []
            while (read := self._call(text, position)) is not None:
                call, position = read
                calls.append(call)
            end = self._end.match(text, position)
            if calls and end is not None:
                yield begin.start(), end.end(), tuple(calls)

    def _call(self, text: str, position: int) -> tuple[WrittenCall, int] | None:
        head = self._head.match(text, position)
        stop = None if head is None else end_of_json(text, head.end())
        tail = None if stop is None else self._tail.match(text, stop)
        if head is None or tail is None:
            return None
        call = make_call(head["name"], text[head.end() : stop], head.groupdict().get("id"))
        return None if call is None else (call, tail.end())

    def call_start(self, tool: str | None) -> str:
        start = self.block[0] + self.call[0]
        return start if tool is None else f"{start}{tool}{self.call[1]}"


def _allow_space(mark: str) -> str:
    """The pattern of a mark, with any white space where the mark has some; the space at its ends does not count."""
    return r"\s+".join(map(re.escape, mark.split()))


class KimiK2(NamedCalls):
    """`<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{...}<|tool_call_end|>` in a section.

    What stands in the place of the name is the call's id: name and number.
    """

    name = "kimi_k2"
    block = ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>")
    call = ("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>")
    name_pattern = r"(?P<id>(?:functions\.)?(?P<name>[^\s<>{}:]+):\d+)"
    call_marks = ("<|tool_calls_section_begin|>", "<|tool_call_begin|>")

    def call_start(self, tool: str | None) -> str:
        start = self.block[0] + self.call[0] + "functions."
        return start if tool is None else f"{start}{tool}:0{self.call[1]}"


class Hunyuan(NamedCalls):
    """`<tool_calls><tool_call>function<tool_sep>f`, then the arguments as a json code block."""

    name = "hunyuan"
    block = ("<tool_calls>", "</tool_calls>")
    call = ("<tool_call>function<tool_sep>", "\n```json\n", "\n```</tool_call>")
    call_marks = ("<tool_calls>", "<tool_call>")


class Functionary(NamedCalls):
    """`<function=f>{...}</function>`: functionary 3.1, and Llama 3 where it is asked for that."""

    name = "functionary"
    stops = ("<|eot_id|>", "<|eom_id|>")
    call = ("<function=", ">", "</function>")
    call_marks = ("<function=",)
