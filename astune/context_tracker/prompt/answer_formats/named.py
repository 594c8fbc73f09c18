# ruff: noqa: RUF001  (the bars in DeepSeek's tokens are full-width)
"""Calls that are a name and then JSON, between marks: Kimi K2, Hunyuan, functionary, DeepSeek up to V3.1."""

from __future__ import annotations

import re
from typing import ClassVar

from astune.context_tracker.prompt.answer_formats.base import MarkedCalls
from astune.context_tracker.prompt.tool_calls import WrittenCall, end_of_json, make_call


class NamedCalls(MarkedCalls):
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
        self.opening = re.compile(_allow_space(self.block[0]) or before)
        self._head = re.compile(rf"\s*{before}\s*{self.name_pattern}\s*{between}\s*")
        self._tail = re.compile(rf"\s*{after}")
        self._end = re.compile(rf"\s*{_allow_space(self.block[1])}" + (r"|\s*\Z" if self.block[1] else ""))

    def read_calls(self, text: str, mark: re.Match[str]) -> tuple[int, list[WrittenCall]] | None:
        position = mark.end() if self.block[0] else mark.start()
        calls = []
        while (read := self._read_call(text, position)) is not None:
            call, position = read
            calls.append(call)
        end = self._end.match(text, position)
        return (end.end(), calls) if calls and end is not None else None

    def _read_call(self, text: str, position: int) -> tuple[WrittenCall, int] | None:
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


class DeepSeekV3(NamedCalls):
    """`<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f`, then the arguments as a json code block."""

    name = "deepseek_v3"
    next_openings = ("<｜tool▁outputs▁begin｜>",)  # R1's template does not close an answer with one call
    block = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
    call = ("<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "\n```json\n", "\n```<｜tool▁call▁end｜>")
    call_marks = ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>")


class DeepSeekV31(NamedCalls):
    """`<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{...}<｜tool▁call▁end｜><｜tool▁calls▁end｜>`."""

    name = "deepseek_v31"
    block = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
    call = ("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>")
    call_marks = ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>")
