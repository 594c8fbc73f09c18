# ruff: noqa: RUF001  (the bars in DeepSeek's tokens are full-width)
"""Calls between tags: Hermes (Qwen2.5, Qwen3), Qwen3-Coder and later Qwens, GLM, DeepSeek from V3.2 on, and others."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import ClassVar

from astune.context_tracker.prompt.answer_formats.base import MarkedCalls, ReasoningMarks, TextFormat
from astune.context_tracker.prompt.tagged_text import LAYOUTS, TagLayout, Tags, find_tagged_calls
from astune.context_tracker.prompt.tool_calls import (
    Found,
    Tools,
    WrittenCall,
    end_of_json,
    read_json_call,
    skip_space,
)

_OPEN = re.compile(r"<tool_call>\s*")
_CLOSE = re.compile(r"\s*</tool_call>")


class Hermes(MarkedCalls):
    """`<tool_call>{"name": "f", "arguments": {...}}</tool_call>`; the arguments may hold the closing tag."""

    name = "hermes"
    call_marks = ("<tool_call>", "</tool_call>", '"arguments"')
    signs = ('<tool_call>{"name":',)
    opening = _OPEN

    def read_calls(self, text: str, mark: re.Match[str]) -> tuple[int, list[WrittenCall]] | None:
        stop = end_of_json(text, mark.end())
        close = None if stop is None else _CLOSE.match(text, stop)
        if close is None:
            return None
        call = read_json_call(text[mark.end() : stop], "arguments")
        return None if call is None else (close.end(), [call])

    def call_start(self, tool: str | None) -> str:
        start = '<tool_call>\n{"name": "'
        return start if tool is None else f'{start}{tool}", "arguments":'

    def write_calls(self, calls: Sequence[WrittenCall]) -> str | None:
        return "\n".join(f"{self.call_start(call.name)} {call.arguments}}}\n</tool_call>" for call in calls)


class Tagged(TextFormat):
    """Arguments are text between tags, so what the text stands for is up to the tool's schema.

    A block of calls, in the formats that have one, is read as a whole: one malformed call leaves all of it in the text.
    """

    block: ClassVar[tuple[str, str]] = ("", "")
    """The texts around all calls."""
    first: ClassVar[tuple[str, str]]
    """The texts before and after the name of a call."""
    tags: ClassVar[Tags]

    def find_calls(self, text: str, tools: Tools) -> Iterator[Found]:
        """The blocks that hold calls and nothing else; without block marks each call is one."""
        begin, end = self.block
        opened, position, calls = 0, 0, list[WrittenCall]()
        for start, stop, found in find_tagged_calls(text, self.tags, tools):
            before = text[position:start]
            if before.rstrip().endswith(begin):
                opened, calls = position + before.rindex(begin), []
            elif before.strip():
                calls = []
                continue
            position, calls = stop, [*calls, *found]
            close = skip_space(text, stop)
            if text.startswith(end, close) and text.startswith(begin, opened):
                position = close + len(end)
                yield opened, position, tuple(calls)

    def call_start(self, tool: str | None) -> str:
        start = (self.block[0] and f"{self.block[0]}\n") + self.first[0]
        return start if tool is None else f"{start}{tool}{self.first[1]}"


class Qwen3Coder(Tagged):
    """`<tool_call><function=f><parameter=x>1</parameter></function></tool_call>`; also Nemotron 3."""

    name = "qwen3_coder"
    call_marks = ("<tool_call>", "</tool_call>", "<function=", "<parameter=")
    first = ("<tool_call>\n<function=", ">\n")
    tags = Tags(
        start=r"<tool_call>\s*<function=(?P<name>[^<>\n]+)>",
        argument=r"<parameter=(?P<key>[^<>\n]+)>",
        closing="</parameter>",
        end=r"</function>\s*</tool_call>",
        stray="</?tool_call>|</function>|<function=",
        own_lines=True,
    )


class Glm(Tagged):
    """`<tool_call>f <arg_key>x</arg_key> <arg_value>1</arg_value></tool_call>`, each on a line of its own.

    An answer has no closing token: the model samples the token that opens the next message.
    """

    name = "glm"
    stops = ("<|user|>", "<|observation|>")
    next_openings = ("<|user|>", "<|observation|>", "<|assistant|>", "<|system|>")
    call_marks = ("<tool_call>", "</tool_call>", "<arg_key>", "<arg_value>")
    first = ("<tool_call>", "\n")
    tags = Tags(
        start=r"<tool_call>[\s]*(?P<name>[\w.-]+)(?=[\s]*(?:<arg_key>|</tool_call>))",
        argument=r"<arg_key>(?P<key>[^<>]*)</arg_key>\s*<arg_value>",
        closing="</arg_value>",
        end="</tool_call>",
        stray="<tool_call>",
        layouts=(*LAYOUTS, TagLayout("\n", "\n", "", "\n")),  # Ling's, too
    )


class MiniMaxM2(Tagged):
    """`<minimax:tool_call><invoke name="f"><parameter name="x">1</parameter></invoke></minimax:tool_call>`."""

    name = "minimax_m2"
    block = ("<minimax:tool_call>", "</minimax:tool_call>")
    first = ('<invoke name="', '">')
    tags = Tags(
        start=r'<invoke name="(?P<name>[^"<>\n]+)">',
        argument=r'<parameter name="(?P<key>[^"<>\n]+)">',
        closing="</parameter>",
        end="</invoke>",
        stray="<invoke name=",
    )
    call_marks = ("<minimax:tool_call>", "<invoke name=")


class SeedOss(Tagged):
    """`<seed:tool_call><function=f><parameter=x>1</parameter></function></seed:tool_call>`."""

    name = "seed_oss"
    reasoning = (ReasoningMarks("<seed:think>", "</seed:think>", "</seed:think>"),)
    block = ("<seed:tool_call>", "</seed:tool_call>")
    first = ("<function=", ">")
    tags = Tags(
        start=r"<function=(?P<name>[^<>\n]+)>",
        argument=r"<parameter=(?P<key>[^<>\n]+)>",
        closing="</parameter>",
        end="</function>",
        stray="<function=",
        apart="\n</seed:tool_call>\n<seed:tool_call>\n",
    )
    call_marks = ("<seed:tool_call>", "<function=")


class Hunyuan3(Tagged):
    """`<tool_calls><tool_call>f<tool_sep><arg_key>x</arg_key><arg_value>1</arg_value></tool_call></tool_calls>`, each
    tag with `:opensource` at its end."""

    name = "hunyuan_3"
    reasoning = (ReasoningMarks("<think:opensource>", "</think:opensource>", "</think:opensource>"),)
    block = ("<tool_calls:opensource>", "</tool_calls:opensource>")
    first = ("<tool_call:opensource>", "<tool_sep:opensource>")
    tags = Tags(
        start=r"<tool_call:opensource>[\s]*(?P<name>[^<>\s]+)[\s]*<tool_sep:opensource>",
        argument=r"<arg_key:opensource>(?P<key>[^<>\n]+)</arg_key:opensource>\s*<arg_value:opensource>",
        closing="</arg_value:opensource>",
        end="</tool_call:opensource>",
        stray="<tool_call:opensource>",
    )
    call_marks = ("<tool_calls:opensource>", "<tool_call:opensource>")


class MiniCpm5(Tagged):
    """`<function name="f"><param name="x">1</param></function>`; a value may stand in a CDATA block."""

    name = "minicpm5"
    first = ('<function name="', '">')
    tags = Tags(
        start=r'<function name="(?P<name>[^"<>\n]+)">',
        argument=r'<param name="(?P<key>[^"<>\n]+)">',
        closing="</param>",
        end="</function>",
        stray="<function name=",
        cdata=True,
    )
    call_marks = ("<function name=",)


class DeepSeekV32(Tagged):
    """`<｜DSML｜invoke name="f"><｜DSML｜parameter name="x" string="false">1</｜DSML｜parameter></｜DSML｜invoke>` in
    `<｜DSML｜function_calls>`; an argument that is not a string is JSON."""

    name = "deepseek_v32"
    block = ("<｜DSML｜function_calls>", "</｜DSML｜function_calls>")
    first = ('<｜DSML｜invoke name="', '">')
    tags = Tags(
        start=r'<｜DSML｜invoke name="(?P<name>[^"<>\n]+)">',
        argument=r'<｜DSML｜parameter name="(?P<key>[^"<>\n]+)"\s+string="(?P<string>true|false)">',
        closing="</｜DSML｜parameter>",
        end="</｜DSML｜invoke>",
        stray="<｜DSML｜invoke",
    )
    call_marks = ("<｜DSML｜function_calls>", "<｜DSML｜invoke")


class DeepSeekV4(DeepSeekV32):
    """The notation of DeepSeek V3.2, in `<｜DSML｜tool_calls>`."""

    name = "deepseek_v4"
    block = ("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>")
    call_marks = ("<｜DSML｜tool_calls>", "<｜DSML｜invoke")
