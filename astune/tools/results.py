"""Results of tools as agents get them: a text, and why it is none."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from astune.errors import nearest
from astune.types import ToolCause

_CANNOT_TAKE = re.compile(
    r"\W*(mcp error -32602\b|(arguments|input) validation (error|failed)|invalid (tool )?arguments|missing required"
    r"|(error executing tool [\w.-]+: )?\d+ validation errors? for )",
    re.IGNORECASE,
)

_TIMED_OUT = re.compile(r"\W*((command|call|request|tool) )?timed out\b", re.IGNORECASE)


@dataclass(frozen=True)
class ToolResult:
    """The text for the agent. `cause` says what went wrong, None if nothing did; `cut_short` that the text lacks its
    end; `detail` what people want to know beside the text."""

    text: str
    cause: ToolCause | None = None
    cut_short: bool = False
    detail: str = ""


def unknown_tool(name: str, known: Collection[str]) -> ToolResult:
    """The result of a call of a tool that there is not."""
    said = f"Error: there is no tool {name!r}.{nearest(name, known)} There are: {', '.join(known)}"
    return ToolResult(said, "unknown")


def read_cause(error: str) -> ToolCause:
    """Why a call failed, as far as the text of the error tells.

    >>> read_cause("Error executing tool add: 1 validation error for addArguments"), read_cause("no such city")
    ('malformed', 'said_no')
    >>> read_cause("MCP error -32602: Input validation error: Invalid arguments for tool get-sum")  # on node
    'malformed'
    >>> read_cause("Command timed out after 500ms: sleep 9")
    'time_limit'
    """
    if _CANNOT_TAKE.match(error):
        return "malformed"
    return "time_limit" if _TIMED_OUT.match(error) else "said_no"


def read_result(wire: Mapping[str, Any], most: int, on_longer: Literal["cut", "refuse"]) -> ToolResult:
    """The result of a call, of at most `most` characters of the server's."""
    text = "\n".join(_texts(wire))
    if wire.get("isError"):
        cut, is_cut = _cut(text, most)
        return ToolResult(cut or "Error: the tool failed, and says no more", read_cause(text), is_cut)
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
