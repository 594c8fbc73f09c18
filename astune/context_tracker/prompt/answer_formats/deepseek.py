# ruff: noqa: RUF001  (the bars in DeepSeek's tokens are full-width)
"""DeepSeek V3 and R1: a block of calls, each with its arguments in a json code block."""

from __future__ import annotations

import re
from collections.abc import Iterator

from astune.context_tracker.prompt.answer_formats.base import TextFormat
from astune.context_tracker.prompt.tool_calls import Found, Tools, WrittenCall, make_call, take_out

_CALL = re.compile(
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>([^\n<>]+)\n```json\n(.*?)\n```<｜tool▁call▁end｜>", re.DOTALL
)
_BLOCK = re.compile(r"<｜tool▁calls▁begin｜>(.*?)(?:<｜tool▁calls▁end｜>|\Z)", re.DOTALL)
_START = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>"


class DeepSeekV3(TextFormat):
    """`<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f`, then the arguments as a json code block.

    A block of calls is read as a whole: one malformed call leaves all of it in the text.
    """

    name = "deepseek_v3"
    next_openings = ("<｜tool▁outputs▁begin｜>",)  # R1's template does not close an answer with one call

    def is_taught_by(self, template: str) -> bool:
        return "<｜tool▁call▁begin｜>" in template and "```json" in template

    def split_calls(self, text: str, tools: Tools) -> tuple[str, tuple[WrittenCall, ...]]:
        return take_out(text, self._found(text))

    def _found(self, text: str) -> Iterator[Found]:
        for block in _BLOCK.finditer(text):
            inside = block.group(1)
            calls = [make_call(name, arguments) for name, arguments in _CALL.findall(inside)]
            if calls and None not in calls and not _CALL.sub("", inside).strip():
                yield block.start(), block.end(), tuple(call for call in calls if call)

    def call_start(self, tool: str | None) -> str:
        return _START if tool is None else f"{_START}{tool}\n```json\n"
