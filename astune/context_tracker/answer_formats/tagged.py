"""Calls between `<tool_call>` and `</tool_call>`: Hermes (Qwen2.5, Qwen3), Qwen3-Coder and later Qwens, GLM-4.5."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterator

from astune.context_tracker.answer_formats.base import TextFormat
from astune.context_tracker.tool_calls import Found, ToolCall, Tools, read_json_call, take_out, typed_arguments

_BLOCK = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_FUNCTION = re.compile(r"\s*<function=([^<>\n]+)>(.*)</function>\s*", re.DOTALL)
_PARAMETER = re.compile(r"\s*<parameter=([^<>\n]+)>(.*?)</parameter>", re.DOTALL)
_GLM_CALL = re.compile(r"\s*([\w.-]+)\s*((?:<arg_key>.*)?)", re.DOTALL)
_GLM_ARGUMENT = re.compile(r"\s*<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)


class _Tagged(TextFormat):
    @abstractmethod
    def read_block(self, block: str, tools: Tools) -> ToolCall | None:
        """The call that stands between the tags, None if it is malformed."""

    def split_calls(self, text: str, tools: Tools) -> tuple[str, tuple[ToolCall, ...]]:
        return take_out(text, self._found(text, tools))

    def _found(self, text: str, tools: Tools) -> Iterator[Found]:
        for block in _BLOCK.finditer(text):
            call = self.read_block(block.group(1), tools)
            if call is not None:
                yield block.start(), block.end(), (call,)


class Hermes(_Tagged):
    """`<tool_call>{"name": "f", "arguments": {...}}</tool_call>`"""

    name = "hermes"

    def is_taught_by(self, template: str) -> bool:
        tagged = "<tool_call>" in template and "arguments" in template
        return tagged and "<function=" not in template and "<arg_key>" not in template

    def read_block(self, block: str, tools: Tools) -> ToolCall | None:
        return read_json_call(block, "arguments")

    def call_start(self, tool: str | None) -> str:
        start = '<tool_call>\n{"name": "'
        return start if tool is None else f'{start}{tool}", "arguments": '


class Qwen3Coder(_Tagged):
    """`<tool_call><function=f><parameter=x>1</parameter></function></tool_call>`; also Nemotron 3."""

    name = "qwen3_coder"

    def is_taught_by(self, template: str) -> bool:
        return "<tool_call>" in template and "<function=" in template

    def read_block(self, block: str, tools: Tools) -> ToolCall | None:
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


class Glm(_Tagged):
    """`<tool_call>f <arg_key>x</arg_key> <arg_value>1</arg_value></tool_call>`, each on a line of its own.

    An answer has no closing token: the model samples the token that opens the next message.
    """

    name = "glm"
    stops = ("<|user|>", "<|observation|>")
    next_openings = ("<|user|>", "<|observation|>", "<|assistant|>", "<|system|>")

    def is_taught_by(self, template: str) -> bool:
        return "<tool_call>" in template and "<arg_key>" in template

    def read_block(self, block: str, tools: Tools) -> ToolCall | None:
        call = _GLM_CALL.fullmatch(block)
        pairs = None if call is None else _pairs(_GLM_ARGUMENT, call.group(2))
        return None if call is None or pairs is None else typed_arguments(call.group(1), pairs, tools)

    def call_start(self, tool: str | None) -> str:
        return "<tool_call>" if tool is None else f"<tool_call>{tool}\n"


def _pairs(pattern: re.Pattern[str], text: str) -> list[tuple[str, str]] | None:
    """Key and value of each argument; None if `text` holds anything else but white space."""
    found = list(pattern.finditer(text))
    return None if pattern.sub("", text).strip() else [(match.group(1), match.group(2)) for match in found]
