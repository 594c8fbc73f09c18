"""Check the fields of an example in a file. Each error names file, line and field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from astune.errors import TaskError, nearest
from astune.support.file_kinds import instead, kind_of

ROLES = ("system", "developer", "user", "assistant", "tool")
Message = Mapping[str, Any]
BESIDE = ("tools", "lineage")
"""What may be there of any example: the tools that the model is offered, and where the example came from."""


def check_names(row: Mapping[str, Any], known: tuple[str, ...], place: str) -> None:
    """`known` has what must be there; `BESIDE` may be."""
    kind = kind_of(row)
    if kind is not None and row.keys() - {*BESIDE} != {*known}:
        raise TaskError(f"{place}: {instead(kind, 'examples with ' + ', '.join(known))}")
    for name in row:
        if name not in (*known, *BESIDE):
            raise TaskError(
                f"{place}: unknown field {name!r}.{nearest(name, (*known, *BESIDE))} There are: "
                f"{', '.join((*known, *BESIDE))}"
            )
    for name in known:
        if name not in row:
            raise TaskError(f"{place}: no field {name!r}; there are: {', '.join(row) or 'none'}")


def conversation(row: Mapping[str, Any], name: str, place: str) -> list[Message]:
    """The messages of field `name`, in OpenAI's shape; a single message may stand without a list."""
    value = row[name]
    messages = [value] if isinstance(value, dict) and name != "messages" else value
    if not isinstance(messages, list) or not messages:
        raise TaskError(f"{place}: {name}: expected a list of messages, got {_short(value)}")
    for number, message in enumerate(messages):
        _check_message(message, f"{place}: {name}[{number}]")
    return messages


def tools_of(row: Mapping[str, Any], place: str) -> list[Mapping[str, Any]]:
    """The tools that the model is offered, in OpenAI's shape; none where there is no such field."""
    tools = row.get("tools") or []
    if not isinstance(tools, list):
        raise TaskError(f"{place}: tools: expected a list, got {_short(tools)}")
    for number, tool in enumerate(tools):
        if not isinstance(tool, dict) or not isinstance(tool.get("function"), dict) or "name" not in tool["function"]:
            raise TaskError(
                f'{place}: tools[{number}]: expected {{"type": "function", "function": {{"name": ..., ...}}}}, '
                f"got {_short(tool)}"
            )
    return tools


def _check_message(message: Any, place: str) -> None:
    if not isinstance(message, dict):
        raise TaskError(f'{place}: expected {{"role": ..., "content": ...}}, got {_short(message)}')
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        raise TaskError(f"{place}.role: expected one of {', '.join(ROLES)}, got {role!r}.{nearest(str(role), ROLES)}")
    if "weight" in message and (role != "assistant" or message["weight"] not in (0, 1)):
        raise TaskError(
            f"{place}.weight: expected 0 or 1, of the assistant's messages alone, got {message['weight']!r}"
        )
    calls = message.get("tool_calls") or []
    if not isinstance(content, str | list | None) or (content is None and not calls and "content" not in message):
        raise TaskError(f"{place}.content: expected text or a list of text parts, got {_short(content)}")
    for number, call in enumerate(calls if isinstance(calls, list) else [calls]):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str) or "arguments" not in function:
            raise TaskError(
                f'{place}.tool_calls[{number}]: expected {{"function": {{"name": ..., "arguments": "<JSON>"}}}}, '
                f"got {_short(call)}"
            )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
