"""OpenAI's harmony (gpt-oss): an answer is a run of messages, each in a channel.

    <|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>
    <|channel|>commentary to=functions.f <|constrain|>json<|message|>{"x": 1}<|call|>

Analysis is reasoning, final and commentary without a recipient are content.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from astune.context_tracker.prompt.answer_formats.base import AnswerFormat, ReasoningMarks
from astune.context_tracker.prompt.tool_calls import (
    ParsedMessage,
    Tools,
    WrittenCall,
    end_of_json,
    join_pieces,
    make_call,
)
from astune.errors import WorkflowError

_NEXT = "<|start|>assistant"
_BODY = "<|message|>"
_END = re.compile(r"<\|(?:end|call|return)\|>|(?=<\|start\|>)|\Z")
_REFUSED = re.compile(r"<\|channel\|>((?:analysis|final)<\|message\|>)")
_CHANNEL = re.compile(r"<\|channel\|>(\w+)")
_RECIPIENT = re.compile(r"\bto=functions\.([^\s<]+)")
_HEADER = re.compile(r"(?:\s*to=functions\.[^\s<]+|\s*<\|channel\|>\w+|\s*<\|constrain\|>\w+|\s+json)*\s*")


class Harmony(AnswerFormat):
    """An answer holds at most one call: the model stops after it."""

    name = "harmony"
    reasoning = (ReasoningMarks("<|channel|>analysis<|message|>", "<|end|>", f"<|end|>{_NEXT}"),)
    stops = ("<|return|>", "<|call|>")
    closing_pattern = r"<\|end\|>(?!<\|start\|>assistant)"
    text_start = "<|channel|>final<|message|>"
    call_marks = ("to=functions.", "<|constrain|>")

    def read(self, text: str, tools: Tools | None = None, opened: ReasoningMarks | None = None) -> ParsedMessage:
        reasoning: list[str] = []
        content: list[str] = []
        calls: list[WrittenCall] = []
        for header, body, written in _messages(text if opened is None else opened.opening + text):
            channel = _channel(header)
            recipient = _RECIPIENT.search(header)
            call = make_call(recipient[1], body) if channel and recipient and (tools is None or tools) else None
            if call is not None:
                calls.append(call)
            elif channel == "analysis" and recipient is None:
                reasoning.append(body)
            else:
                content.append(body if channel in ("final", "commentary") and recipient is None else written)
        said = content[0] if len(content) == 1 and not calls else join_pieces(content)
        return ParsedMessage(said or None, "\n".join(reasoning) if reasoning else None, tuple(calls))

    def call_start(self, tool: str | None) -> str:
        return " to=functions." if tool is None else f" to=functions.{tool}<|channel|>commentary json<|message|>"

    def for_template(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """The template writes one call per message, and one text before it, as analysis; more it loses or refuses. It
        refuses texts that hold the header of a channel, as an answer may that is malformed: these lose its mark."""
        if message.get("role") == "assistant":
            texts = {key: message[key] for key in ("content", "thinking") if isinstance(message.get(key), str)}
            message = {**message, **{key: _REFUSED.sub(r"\1", text) for key, text in texts.items()}}
        calls, reasoning = message.get("tool_calls") or (), message.get("thinking")
        if len(calls) > 1:
            raise WorkflowError(
                f"an assistant message calls {len(calls)} tools at once; gpt-oss's chat template writes one call "
                "per message: set parallel_tool_calls to false, or send one assistant message per call"
            )
        if not calls or not reasoning or not message.get("content"):
            return message
        return {**message, "thinking": f"{reasoning}\n{message['content']}", "content": ""}


def _messages(text: str) -> Iterator[tuple[str, str, str]]:
    """Header, body and the whole of each message; text that is in none comes with an empty header."""
    position = 0
    while (mark := text.find(_BODY, position)) >= 0:
        body = mark + len(_BODY)
        arguments = end_of_json(text, body) if _RECIPIENT.search(text, position, mark) else None
        end = _END.search(text, arguments or body)  # the strings of arguments may hold the mark
        assert end is not None  # the end of the text matches
        yield text[position:mark].removeprefix(_NEXT), text[body : end.start()], text[position : end.end()]
        position = end.end()
    if text[position:]:
        yield "", "", text[position:]


def _channel(header: str) -> str | None:
    """The channel that a header names, None if it holds anything that is not known."""
    channel = _CHANNEL.search(header)
    return None if channel is None or _HEADER.fullmatch(header) is None else channel[1]
