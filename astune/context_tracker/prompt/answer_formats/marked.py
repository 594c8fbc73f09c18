"""Calls in JSON, bare or after a special token: Llama 3, Mistral."""

from __future__ import annotations

import re
from collections.abc import Sequence

from astune.context_tracker.prompt.answer_formats.base import THINK, MarkedCalls, ReasoningMarks, TextFormat
from astune.context_tracker.prompt.tool_calls import (
    Found,
    Tools,
    WrittenCall,
    array_slices,
    end_of_json,
    make_call,
    read_json_call,
)

_PYTHON_TAG = "<|python_tag|>"
_TOOL_CALLS = "[TOOL_CALLS]"
_LIST = re.compile(r"\[TOOL_CALLS\]\s*")
_NAME_AND_ARGS = re.compile(r"\[TOOL_CALLS\]\s*([^\[\]\s]+)(?:\[CALL_ID\]([^\[\]\s]+))?\[ARGS\]\s*")


class Llama3Json(TextFormat):
    """`{"name": "f", "parameters": {...}}` as the whole answer, or after `<|python_tag|>`: Llama 3.1 to 3.3.

    One call per answer: the templates refuse a history with more.
    """

    name = "llama3_json"
    stops = ("<|eot_id|>", "<|eom_id|>")
    call_marks = (_PYTHON_TAG, '"parameters"', '"arguments"')

    def find_calls(self, text: str, tools: Tools) -> Sequence[Found]:
        tag = text.find(_PYTHON_TAG)
        for start in dict.fromkeys((0, max(tag, 0))):  # an argument may hold the tag
            call = read_json_call(text[start:].removeprefix(_PYTHON_TAG), "parameters", frozenset({"type"}))
            if call is not None:
                return [(start, len(text), (call,))]
        return []

    def call_start(self, tool: str | None) -> str:
        return '{"name": "' if tool is None else f'{{"name": "{tool}", "parameters":'


class Mistral(MarkedCalls):
    """`[TOOL_CALLS][{"name": "f", "arguments": {...}, "id": "..."}]`: Mistral's tokenizers v2 to v7.

    The list is read as a whole: one malformed call leaves all of it in the text.
    """

    name = "mistral"
    reasoning = (ReasoningMarks("[THINK]", "[/THINK]", "[/THINK]"), THINK)
    call_marks = (_TOOL_CALLS, "[ARGS]")
    opening = _LIST

    def read_calls(self, text: str, mark: re.Match[str]) -> tuple[int, list[WrittenCall]] | None:
        stop = end_of_json(text, mark.end())
        if stop is None:
            return None
        items = array_slices(text[mark.end() : stop]) or ()
        calls = [read_json_call(item, "arguments", frozenset({"id"})) for item in items]
        known = [call for call in calls if call is not None]
        return (stop, known) if known and len(known) == len(calls) else None

    def call_start(self, tool: str | None) -> str:
        start = f'{_TOOL_CALLS}[{{"name": "'
        return start if tool is None else f'{start}{tool}", "arguments":'


class MistralArgs(MarkedCalls):
    """`[TOOL_CALLS]f[ARGS]{...}`: Mistral's tokenizers v13 and later."""

    name = "mistral_args"
    reasoning = Mistral.reasoning
    call_marks = Mistral.call_marks
    after_name = "[ARGS]"
    opening = _NAME_AND_ARGS

    def read_calls(self, text: str, mark: re.Match[str]) -> tuple[int, list[WrittenCall]] | None:
        stop = end_of_json(text, mark.end())
        if stop is None:
            return None
        call = make_call(mark.group(1), text[mark.end() : stop], mark.group(2))
        return None if call is None else (stop, [call])

    def call_start(self, tool: str | None) -> str:
        return _TOOL_CALLS if tool is None else f"{_TOOL_CALLS}{tool}{self.after_name}"


class MistralCallId(MistralArgs):
    """`[TOOL_CALLS]f[CALL_ID]...[ARGS]{...}`: Mistral's tokenizer v11. A forced call leaves the id to the model."""

    name = "mistral_call_id"
    after_name = "[CALL_ID]"
