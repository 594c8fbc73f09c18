"""Calls between `<tool_call>` and `</tool_call>`: Hermes (Qwen2.5, Qwen3), Qwen3-Coder and later Qwens, GLM-4.5."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterator

from astune.context_tracker.prompt.answer_formats.base import TextFormat
from astune.context_tracker.prompt.tool_calls import (
    Found,
    Tools,
    WrittenCall,
    end_of_json,
    read_json_call,
    take_out,
    typed_arguments,
)

_OPEN = re.compile(r"<tool_call>\s*")
_CLOSE = re.compile(r"\s*</tool_call>")
_BLOCK = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_FUNCTION = re.compile(r"\s*<function=([^<>\n]+)>(.*)</function>\s*", re.DOTALL)
_PARAMETER = re.compile(r"\s*<parameter=([^<>\n]+)>(.*?)</parameter>", re.DOTALL)
_GLM_CALL = re.compile(r"\s*([\w.-]+)\s*((?:<arg_key>.*)?)", re.DOTALL)
_GLM_ARGUMENT = re.compile(r"\s*<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)


class Hermes(TextFormat):
    """`<tool_call>{"name": "f", "arguments": {...}}</tool_call>`; the arguments may hold the closing tag."""

    name = "hermes"

    def is_taught_by(self, template: str) -> bool:
        tagged = "<tool_call>" in template and "arguments" in template
        return tagged and "<function=" not in template and "<arg_key>" not in template

    def split_calls(self, text: str, tools: Tools) -> tuple[str, tuple[WrittenCall, ...]]:
        return take_out(text, self._found(text))

    def _found(self, text: str) -> Iterator[Found]:
        for mark in _OPEN.finditer(text):
            stop = end_of_json(text, mark.end())
            close = None if stop is None else _CLOSE.match(text, stop)
            call = None if close is None else read_json_call(text[mark.end() : stop], "arguments")
            if call is not None and close is not None:
                yield mark.start(), close.end(), (call,)

    def call_start(self, tool: str | None) -> str:
        start = '<tool_call>\n{"name": "'
        return start if tool is None else f'{start}{tool}", "arguments":'


class _TypedBySchema(TextFormat):
    """Arguments are text between tags, so what the text stands for is up to the tool's schema."""

    @abstractmethod
    def read_block(self, block: str, tools: Tools) -> WrittenCall | None:
        """The call that stands between the tags, None if it is malformed."""

    def split_calls(self, text: str, tools: Tools) -> tuple[str, tuple[WrittenCall, ...]]:
        return take_out(text, self._found(text, tools))

    def _found(self, text: str, tools: Tools) -> Iterator[Found]:
        for block in _BLOCK.finditer(text):
            call = self.read_block(block.group(1), tools)
            if call is not None:
                yield block.start(), block.end(), (call,)


class Qwen3Coder(_TypedBySchema):
    """`<tool_call><function=f><parameter=x>1</parameter></function></tool_call>`; also Nemotron 3."""

    name = "qwen3_coder"

    def is_taught_by(self, template: str) -> bool:
        return "<tool_call>" in template and "<function=" in template

    def read_block(self, block: str, tools: Tools) -> WrittenCall | None:
        function = _FUNCTION.fullmatch(block)
        if function is None:
            return None
        name, body = function.groups()
        pairs = _pairs(_PARAMETER, body)
        if pairs is None:
            return None
        return typed_arguments(name, [(key, text.removeprefix("\n").removesuffix("\n")) for key, text in pairs], tools)

    def call_start(self, tool: str | None) -> str:
        start = "<tool_call>\n<function="
        return start if tool is None else f"{start}{tool}>\n"


class Glm(_TypedBySchema):
    """`<tool_call>f <arg_key>x</arg_key> <arg_value>1</arg_value></tool_call>`, each on a line of its own.

    An answer has no closing token: the model samples the token that opens the next message.
    """

    name = "glm"
    stops = ("<|user|>", "<|observation|>")
    next_openings = ("<|user|>", "<|observation|>", "<|assistant|>", "<|system|>")

    def is_taught_by(self, template: str) -> bool:
        return "<tool_call>" in template and "<arg_key>" in template

    def read_block(self, block: str, tools: Tools) -> WrittenCall | None:
        call = _GLM_CALL.fullmatch(block)
        pairs = None if call is None else _pairs(_GLM_ARGUMENT, call.group(2))
        return None if call is None or pairs is None else typed_arguments(call.group(1), pairs, tools)

    def call_start(self, tool: str | None) -> str:
        return "<tool_call>" if tool is None else f"<tool_call>{tool}\n"


def _pairs(pattern: re.Pattern[str], text: str) -> list[tuple[str, str]] | None:
    """Key and value of each argument; None if `text` holds anything else but white space."""
    found = list(pattern.finditer(text))
    return None if pattern.sub("", text).strip() else [(match.group(1), match.group(2)) for match in found]
