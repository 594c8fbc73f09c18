"""The parts of a request that are a conversation: messages and tools, checked before they reach the tracker.

What real clients add is let through: null fields, `name`, `refusal`, `annotations`, content as a list of text parts,
content beside tool calls. `strict` is taken off, as models do not see it at OpenAI either. What has no meaning for a
text model (images, audio, the older `function_call`) is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from astune.gateway.http import not_supported
from astune.support.http.service import Fields, invalid

_ROLES = ("system", "developer", "user", "assistant", "tool")
_FORMATS = ("text", "json_object", "json_schema")
_STRICT = "strict is ignored. A schema is not enforced: what is in a call or in JSON is the policy's own."
_TOOL_SHAPE = '{"type": "function", "function": {"name": ..., ...}}'


def read_messages(fields: Fields) -> tuple[Mapping[str, Any], ...]:
    messages = fields.take("messages", list, "a list of messages")
    if not messages:
        raise invalid("messages", messages, "a list with at least one message")
    for i, message in enumerate(messages):
        if not isinstance(message, dict):
            raise invalid(f"messages[{i}]", message, "an object")
        if message.get("role") not in _ROLES:
            raise invalid(f"messages[{i}].role", message.get("role"), f"one of {', '.join(_ROLES)}")
        # A request repeats its whole history: what is usual needs no name of its place.
        if (content := message.get("content")) is not None and not isinstance(content, str):
            _check_content(f"messages[{i}].content", content)
        if (calls := message.get("tool_calls")) is not None:
            _check_calls(f"messages[{i}].tool_calls", calls)
        if (answered := message.get("tool_call_id")) is not None and not isinstance(answered, str):
            raise invalid(f"messages[{i}].tool_call_id", answered, "a string")
        if message.get("function_call") is not None:
            raise not_supported(f"messages[{i}].function_call", "function_call is not supported here. Use tool_calls.")
    return tuple(messages)


def _check_content(name: str, content: object) -> None:
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
        if (call_id := call.get("id")) is not None and not isinstance(call_id, str):
            raise invalid(f"{name}.id", call_id, "a string")


def read_tools(fields: Fields) -> tuple[Mapping[str, Any], ...]:
    tools = fields.take("tools", list, "a list of tools", [])
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


def asks_for_json(name: str, form: object) -> bool:
    """Check the format of the answer that the field `name` asks for; true if that is JSON. A schema stands in the form
    itself, or as chat completions have it in its `json_schema`, where the schema may be left out."""
    kind = form.get("type") if isinstance(form, dict) else None
    if not isinstance(form, dict) or kind not in _FORMATS:
        raise invalid(f"{name}.type", kind, f"one of {', '.join(_FORMATS)}")
    if kind != "json_schema":
        return bool(kind != "text")
    inner = name == "response_format"
    if inner:
        name, form = f"{name}.json_schema", form.get("json_schema")
    if not isinstance(form, dict):
        raise invalid(name, form, "an object")
    if not isinstance(form.get("name"), str):
        raise invalid(f"{name}.name", form.get("name"), "a string")
    schema = form.get("schema")
    if not isinstance(schema, dict) and not (inner and schema is None):
        raise invalid(f"{name}.schema", schema, "an object")
    check_strict(f"{name}.strict", form.get("strict"))
    return True


def force_json(arguments: dict[str, Any]) -> None:
    """Make the answer begin as JSON, unless it may be a call."""
    if not (arguments["tools"] and arguments.get("may_call", True)):
        arguments["force"] = "json_object"


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
