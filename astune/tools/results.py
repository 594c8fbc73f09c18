"""Results of tools as agents get them: a text, and why it is none."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from astune.types import ToolCause

_CANNOT_TAKE = re.compile(
    r"\W*((arguments|input) validation (error|failed)|invalid (tool )?arguments|missing required"
    r"|(error executing tool [\w.-]+: )?\d+ validation errors? for )",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class ToolResult:
    """The text for the agent. `cause` says what went wrong, None if nothing did; `cut_short` that the text lacks its
    end; `detail` what people want to know beside the text."""

    text: str
    cause: ToolCause | None = None
    cut_short: bool = False
    detail: str = ""


def says_malformed(text: str) -> bool:
    """True if an error says that the tool cannot take the arguments.

    >>> says_malformed("Error executing tool add: 1 validation error for addArguments"), says_malformed("no such city")
    (True, False)
    """
    return _CANNOT_TAKE.match(text) is not None


def read_result(wire: Mapping[str, Any], most: int, on_longer: Literal["cut", "refuse"]) -> ToolResult:
    """The result of a call, of at most `most` characters of the server's."""
    text = "\n".join(_texts(wire))
    if wire.get("isError"):
        cause: ToolCause = "malformed" if says_malformed(text) else "said_no"
        text, is_cut = _cut(text, most)
        return ToolResult(text or "Error: the tool failed, and says no more", cause, is_cut)
    if len(text) > most and on_longer == "refuse":
        said = f"Error: the result has {len(text):,} characters, more than the {most:,} that are shown. Ask for less"
        return ToolResult(said, "said_no", cut_short=True)
    text, is_cut = _cut(text, most)
    return ToolResult(text, cut_short=is_cut)


def _cut(text: str, most: int) -> tuple[str, bool]:
    if len(text) <= most:
        return text, False
    return f"{text[:most]}\n[{len(text) - most:,} more characters are not shown]", True


def _texts(wire: Mapping[str, Any]) -> Iterator[str]:
    blocks = wire.get("content") or ()
    for block in blocks:
        resource = block.get("resource") or {}
        if block["type"] == "text":
            yield block["text"]
        elif "text" in resource:
            yield resource["text"]
        elif block["type"] == "resource_link":
            yield str(block.get("uri"))
        else:
            kind = block.get("mimeType") or resource.get("mimeType") or block["type"]
            yield f"[{kind}, {len(block.get('data') or resource.get('blob') or ''):,} characters of base64: not shown]"
    if not blocks and "structuredContent" in wire:
        yield json.dumps(wire["structuredContent"], ensure_ascii=False)
