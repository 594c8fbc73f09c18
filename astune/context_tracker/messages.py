"""Messages in OpenAI's wire shape: what a chat template gets of them, and when two of them mean the same.

`content` is a string, a list of `{"type": "text", "text": ...}` parts, or None. `function.arguments` is JSON text.
The model's reasoning is `reasoning_content` (also read: `reasoning` and `thinking`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from astune.errors import WorkflowError

_REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")


def content_text(message: Mapping[str, Any]) -> str:
    """The text of a message; the parts of a list are joined without anything between. None is no text."""
    content = message.get("content")
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for part in content:
        if part.get("type") != "text":
            raise WorkflowError(
                f"a {message.get('role')!r} message has a content part of type {part.get('type')!r}: "
                "ASTune renders text only, so every part must be {'type': 'text', 'text': ...}"
            )
        texts.append(part["text"])
    return "".join(texts)


def reasoning_of(message: Mapping[str, Any]) -> str | None:
    """The reasoning that came with a message, None if there is none."""
    return next((message[key] for key in _REASONING_KEYS if message.get(key) is not None), None)


def parse_arguments(text: Any) -> dict[str, Any] | None:
    """The arguments of a tool call as an object, None if `text` is not the JSON text of one.

    A text that UTF-8 cannot hold once decoded (half of a surrogate pair) counts as malformed.
    """
    try:
        arguments = json.loads(text)
        json.dumps(arguments, ensure_ascii=False).encode()
    except (ValueError, TypeError, RecursionError):
        return None
    return arguments if isinstance(arguments, dict) else None


def for_template(message: Mapping[str, Any]) -> dict[str, Any]:
    """What the chat template is given for `message`.

    - parts of content are joined to one string; None becomes "" unless the message calls tools, where
      templates tell None from text;
    - arguments become an object where they are JSON, else they stay the text they are;
    - reasoning is there as `reasoning_content` and as `thinking`, as transformers passes it;
    - keys that are None and an empty list of tool calls are left out.
    """
    out = {key: value for key, value in message.items() if value is not None}
    if not out.get("tool_calls"):
        out.pop("tool_calls", None)
    calls = out.get("tool_calls")
    out["content"] = None if message.get("content") is None and calls else content_text(message)
    reasoning = reasoning_of(message)
    if reasoning is not None:
        out = {"thinking": reasoning, **out, "reasoning_content": reasoning}
    if calls:
        out["tool_calls"] = [_call_for_template(call) for call in calls]
    return out


def _call_for_template(call: Mapping[str, Any]) -> dict[str, Any]:
    function = dict(call["function"])
    arguments = parse_arguments(function.get("arguments"))
    if arguments is not None:
        function["arguments"] = arguments
    return {**call, "function": function}


def same_arguments(left: str, right: str) -> bool:
    """Equal as JSON (`1e2` equals `100.0`, key order does not count), or equal as text if not JSON."""
    return bool(_meaning_of_arguments(left) == _meaning_of_arguments(right))


def _meaning_of_arguments(text: Any) -> Any:
    arguments = parse_arguments(text)
    if arguments is None:
        return text
    return json.dumps(json.loads(text, parse_float=_number), sort_keys=True)


def _number(text: str) -> float | int:
    number = float(text)
    return int(number) if number.is_integer() else number


def _meaning(message: Mapping[str, Any]) -> list[Any]:
    calls = [
        [call.get("id"), call["function"].get("name"), _meaning_of_arguments(call["function"].get("arguments"))]
        for call in message.get("tool_calls") or ()
    ]
    return [message.get("role"), content_text(message), calls, message.get("tool_call_id")]


def prefix_keys(messages: Sequence[Mapping[str, Any]]) -> list[bytes]:
    """One key for every non-empty prefix of a conversation; equal keys mean equal conversations.

    Counted: role, text, tool calls (id, name, arguments as JSON) and tool-call ids. Not counted: reasoning,
    `name`, whether the content is a string or parts. Costs one pass over the text.
    """
    keys = []
    key = b""
    for message in messages:
        meaning = json.dumps(_meaning(message), ensure_ascii=True).encode()
        key = hashlib.blake2b(key + meaning, digest_size=16).digest()
        keys.append(key)
    return keys
