"""The parts of a request that are a conversation: messages and tools, checked before they reach the tracker.

What real clients add is let through: null fields, `name`, `refusal`, `annotations`, content as a list of text parts,
content beside tool calls. `strict` is taken off, as models do not see it at OpenAI either. What has no meaning for a
text model (images, audio, the older `function_call`) is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from astune.gateway.api_request import Fields, get
from astune.gateway.errors import invalid, not_supported

_ROLES = ("system", "developer", "user", "assistant", "tool")
_STRICT = "strict is ignored. A schema is not enforced: what is in a call or in JSON is the policy's own."
_TOOL_SHAPE = '{"type": "function", "function": {"name": ..., ...}}'


def read_messages(fields: Fields) -> tuple[Mapping[str, Any], ...]:
    messages = get(fields, "messages", list, "a list of messages", None)
    if not messages:
        raise invalid("messages", messages, "a list with at least one message")
    for i, message in enumerate(messages):
        if not isinstance(message, dict):
            raise invalid(f"messages[{i}]", message, "an object")
        if message.get("role") not in _ROLES:
            raise invalid(f"messages[{i}].role", message.get("role"), f"one of {', '.join(_ROLES)}")
        # A request repeats its whole history: what is usual needs no name of its place.
        if not isinstance(content := message.get("content"), str):
            _check_content(f"messages[{i}].content", content)
        if (calls := message.get("tool_calls")) is not None:
            _check_calls(f"messages[{i}].tool_calls", calls)
        if not isinstance(answered := message.get("tool_call_id"), str):
            _check_id(f"messages[{i}].tool_call_id", answered)
        if message.get("function_call") is not None:
            raise not_supported(f"messages[{i}].function_call", "function_call is not supported here. Use tool_calls.")
    return tuple(messages)


def _check_content(name: str, content: object) -> None:
    if content is None:
        return
    if not isinstance(content, list):
        raise invalid(name, content, "text or a list of parts")
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise invalid(name, part, "text or a list of text parts (images and audio are not supported)")


def _check_calls(name: str, calls: object) -> None:
    if not isinstance(calls, list):
        raise invalid(name, calls, "a list of tool calls")
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise invalid(name, call, 'a list of {"id": ..., "type": "function", "function": {"name": ..., ...}}')
        if not isinstance(call.get("id"), str):
            _check_id(f"{name}.id", call.get("id"))


def _check_id(name: str, value: object) -> None:
    if value is not None and not isinstance(value, str):
        raise invalid(name, value, "a string")


def read_tools(fields: Fields) -> tuple[Mapping[str, Any], ...]:
    tools = get(fields, "tools", list, "a list of tools", [])
    return tuple(_read_tool(f"tools[{i}]", tool) for i, tool in enumerate(tools))


def _read_tool(name: str, tool: object) -> Mapping[str, Any]:
    function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
    if not isinstance(tool, dict) or not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise invalid(name, tool, _TOOL_SHAPE)
    if "strict" not in function:
        return tool
    check_strict(f"{name}.function.strict", function["strict"])
    return {**tool, "function": {key: value for key, value in function.items() if key != "strict"}}


def check_strict(name: str, value: object) -> None:
    if value is not None and not isinstance(value, bool):
        raise invalid(name, value, "true or false")


def check_json_schema(name: str, value: object, *, schema_needed: bool = False) -> None:
    """A format that asks for JSON of a schema: its name, the schema, and whether it is `strict`."""
    if not isinstance(value, dict):
        raise invalid(name, value, "an object")
    if not isinstance(value.get("name"), str):
        raise invalid(f"{name}.name", value.get("name"), "a string")
    schema = value.get("schema")
    if not isinstance(schema, dict) and (schema_needed or schema is not None):
        raise invalid(f"{name}.schema", schema, "an object")
    check_strict(f"{name}.strict", value.get("strict"))


def strict_note(tools: Iterable[Mapping[str, Any]], form: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The note on a tool or a format of the answer, in the shape of either API, that is strict; none without one."""
    outer = [*tools, form or {}]
    shapes = [*outer, *(shape.get(inner) for shape in outer for inner in ("function", "json_schema"))]
    if not any(isinstance(shape, Mapping) and shape.get("strict") for shape in shapes):
        return ()
    return (_STRICT,)


def read_tool_choice(choice: object, tools: tuple[Mapping[str, Any], ...]) -> dict[str, Any]:
    """`tool_choice` as the arguments of a `ChatRequest`: `tools`, and what it says of calls."""
    if choice == "auto":
        return {"tools": tools}
    if choice == "none":
        return {"tools": tools, "may_call": False}
    name = _read_name(choice)
    if choice != "required" and name is None:
        raise invalid("tool_choice", choice, f"'auto', 'none', 'required' or {_TOOL_SHAPE}")
    names = [tool["function"]["name"] for tool in tools]
    if not names or (name is not None and name not in names):
        raise invalid("tool_choice", choice, f"one of the tools of the request: {', '.join(names) or 'there are none'}")
    return {"tools": tools, "force": "tool_call", "force_tool": name}


def _read_name(choice: object) -> str | None:
    function = choice.get("function") if isinstance(choice, dict) and choice.get("type") == "function" else None
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else None
