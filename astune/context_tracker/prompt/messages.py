"""Messages in OpenAI's wire shape: what a chat template gets of them, and when two of them mean the same.

`content` is a string, a list of `{"type": "text", "text": ...}` parts, or None. `function.arguments` is JSON text.
The model's reasoning is `reasoning_content` (also read: `reasoning` and `thinking`).
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from astune.errors import WorkflowError

Message = Mapping[str, Any]
"""One message of a conversation, as OpenAI's chat completions write it."""
SYSTEM_ROLES = ("system", "developer")
REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")


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


def show_content(message: Mapping[str, Any]) -> str:
    """The text of a message for people. A part that is not text is named in its place."""
    value = message.get("content")
    if isinstance(value, list | tuple):
        parts = [part if isinstance(part, Mapping) else {"text": part} for part in value]
        return "".join(str(part["text"]) if "text" in part else f"[{part.get('type')}]" for part in parts)
    return "" if value is None else str(value)


def reasoning_of(message: Mapping[str, Any]) -> str | None:
    """The reasoning that came with a message as text, None if there is none."""
    for key in REASONING_KEYS:
        if isinstance(message.get(key), str):
            return str(message[key])
    return None


def parse_arguments(text: Any) -> dict[str, Any] | None:
    """The arguments of a tool call as an object, None if `text` is not the JSON text of one.

    A text that UTF-8 cannot hold once decoded (half of a surrogate pair) counts as malformed. The object may be given
    out again: it is not to be changed.
    """
    return _kept_arguments(text) if type(text) is str and len(text) <= _SHORT else _arguments(text)


def _arguments(text: Any) -> dict[str, Any] | None:
    try:
        arguments = json.loads(text)
        json.dumps(arguments, ensure_ascii=False).encode()
    except (ValueError, TypeError, RecursionError):
        return None
    return arguments if isinstance(arguments, dict) else None


_SHORT = 2**12
"""Characters of arguments that are kept once read: a call is looked at several times, and equal ones are common."""
_kept_arguments = lru_cache(256)(_arguments)


def for_template(message: Mapping[str, Any]) -> dict[str, Any]:
    """Prepare `message` for the chat template.

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
        out["tool_calls"] = []
        for call in calls:
            function = dict(call["function"])
            arguments = parse_arguments(function.get("arguments"))
            if arguments is not None:
                function["arguments"] = arguments
            out["tool_calls"].append({**call, "function": function})
    return out


def same_arguments(left: str, right: str) -> bool:
    """True if both are equal as JSON (`1e2` equals `100.0`, key order does not count), or equal as text if they are not
    JSON."""
    return bool(_meaning_of_arguments(left) == _meaning_of_arguments(right))


def _meaning_of_arguments(text: Any) -> Any:
    if not isinstance(text, str):
        text = json.dumps(text)
    return _kept_meaning(text) if type(text) is str and len(text) <= _SHORT else _meaning_of_text(text)


def _meaning_of_text(text: str) -> str:
    if parse_arguments(text) is None:
        return text
    return json.dumps(json.loads(text, parse_float=_number), sort_keys=True)


_kept_meaning = lru_cache(256)(_meaning_of_text)


def _number(text: str) -> float | int:
    number = float(text)
    return int(number) if number.is_integer() else number


Meaning = tuple[Any, ...]
"""The meaning of a message; the first entry is its role. Every template writes equal meanings alike."""


class CallPlaces:
    """Finds the tool calls of a conversation by their ids."""

    def __init__(self, messages: Sequence[Mapping[str, Any]]) -> None:
        self._messages = messages
        self._places: dict[Any, list[tuple[int, int]]] = {}
        for place, message in enumerate(messages):
            for number, call in enumerate(message.get("tool_calls") or ()):
                places = self._places.setdefault(call.get("id"), [])
                if not places or places[-1][0] < place:
                    places.append((place, number))

    def find_call(self, index: int) -> tuple[int, int] | str | None:
        """The call that message `index` answers: how many messages before, and its place among the calls of that one.

        The id itself if no message before has such a call, None if the message answers none.
        """
        wanted: str | None = self._messages[index].get("tool_call_id")
        if wanted is None:
            return None
        places = self._places.get(wanted, [])
        before = bisect_left(places, (index,))
        return wanted if not before else (index - places[before - 1][0], places[before - 1][1])


def meaning(messages: Sequence[Mapping[str, Any]], index: int, calls: CallPlaces | None = None) -> Meaning:
    """Reduce message `index` of a conversation to its meaning: role, text, tool calls, the call that a result answers.

    Not counted: `name`, keys that clients add (`refusal`, `annotations`, ...), whether text comes as a string, as
    parts or as None, how arguments are laid out, and reasoning, which agents drop (see `same_reasoning`). Tool-call
    ids count by what they point at: `("tool", "42", (), (1, 0))` answers the first call of the message before. So
    ids that a framework rewrites in call and result alike change nothing.
    """
    message = messages[index]
    said = tuple(
        (call["function"].get("name"), _meaning_of_arguments(call["function"].get("arguments")))
        for call in message.get("tool_calls") or ()
    )
    answered = (calls or CallPlaces(messages)).find_call(index)
    return message.get("role"), content_text(message), said, answered


def without_system(conversation: Sequence[Meaning]) -> Sequence[Meaning]:
    """The conversation after the system messages at its start."""
    lead = next((i for i, message in enumerate(conversation) if message[0] not in SYSTEM_ROLES), len(conversation))
    return conversation[lead:]


def same_reasoning(sent: Mapping[str, Any], sampled: Mapping[str, Any]) -> bool:
    """True if the agent sends a message's reasoning as it was, or dropped it."""
    reasoning = reasoning_of(sent)
    return not reasoning or reasoning.strip() == (reasoning_of(sampled) or "").strip()
