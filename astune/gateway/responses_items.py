"""The items of the Responses API and the messages they stand for.

An answer travels as several items, in this order, and comes back as several items:

    reasoning rs_5e_3 | message msg_5e_3 | function_call fc_5e_3_0 | function_call fc_5e_3_1      answer number 3

`fold` makes one assistant message of them again, the one that the tracker recorded, so that the sampled tokens are
found. Which items are one answer is told by their ids (or the ids of the calls), and where an item has none of ours by
the order above.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from astune.context_tracker.prompt.messages import Message
from astune.gateway.http import not_supported
from astune.support.http.service import HttpError, invalid

Item = Mapping[str, Any]

_ROLES = ("user", "assistant", "system", "developer")
_TEXT_PARTS = ("input_text", "output_text")
_SLOTS = ("reasoning_content", "content", "tool_calls")
_OUR_ID = re.compile(r"(?:rs|msg)_(?:[0-9a-f]+_)?(\d+)|fc_(?:[0-9a-f]+_)?(\d+)_\d+|c(\d{5,})\d{3}")
"""Ids of items. The part before the number is the same for all answers of an endpoint; the last form is the id of a
call, as the tracker makes it."""


def output_items(
    message: Message, name: str, *, truncated: bool, logprobs: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The items of the answer `name`: its reasoning, its text (also an empty one, where it calls nothing), its calls.

    `logprobs` are put beside the text. Of a truncated answer the last item is incomplete.
    """
    items: list[dict[str, Any]] = []
    reasoning, text, calls = (message.get(slot) for slot in _SLOTS)
    if reasoning:
        parts = [{"type": "reasoning_text", "text": reasoning}]
        items.append({"id": f"rs_{name}", "type": "reasoning", "summary": [], "content": parts})
    if text or not calls:
        part = {"type": "output_text", "text": text or "", "annotations": [], "logprobs": logprobs}
        items.append({"id": f"msg_{name}", "type": "message", "role": "assistant", "content": [part]})
    for index, call in enumerate(calls or ()):
        item = {"id": f"fc_{name}_{index}", "type": "function_call", "call_id": call["id"], **call["function"]}
        items.append(item)
    for item in items:
        item["status"] = "completed"
    if truncated:
        items[-1]["status"] = "incomplete"
    return items


def fold(items: Sequence[object], stored: Mapping[str, Item]) -> tuple[Message, ...]:
    """Turn the items of a request into messages. `stored` are the items that it may refer to by id.

    Raises:
        HttpError: 400, naming the item that is wrong or not supported.
    """
    folding = _Folding()
    for index, item in enumerate(items):
        name = f"input[{index}]"
        if not isinstance(item, Mapping):
            raise invalid(name, item, "an object")
        if item.get("type") == "item_reference":
            item = _follow_reference(name, item, stored)
        kind = item.get("type") or "message"
        read = _READERS.get(kind) if isinstance(kind, str) else None
        if read is None:
            known = ", ".join((*_READERS, "item_reference"))
            raise not_supported(f"{name}.type", f"items of type {kind!r:.200} are not supported here, only {known}")
        read(folding, name, item)
    return folding.messages()


class _Folding:
    """Messages so far. The last answer is open: items of it may follow, also after results of its calls."""

    def __init__(self) -> None:
        self._messages: list[dict[str, Any]] = []
        self._answer: dict[str, Any] | None = None
        self._number: str | None = None

    def messages(self) -> tuple[Message, ...]:
        """All messages but answers without content: those hold reasoning of another model, which only that model can
        read."""
        return tuple(message for message in self._messages if message["role"] != "assistant" or not _is_empty(message))

    def add(self, message: dict[str, Any]) -> None:
        self._messages.append(message)
        if message["role"] != "tool":
            self._answer = None

    def answer(self, slot: str, item: Item) -> dict[str, Any]:
        """The assistant message to which an item for `slot` belongs."""
        number = _number(item)
        if self._answer is None or not self._joins(self._answer, slot, number):
            self._answer, self._number = {"role": "assistant", "content": None}, None
            self._messages.append(self._answer)
        self._number = self._number or number
        return self._answer

    def _joins(self, answer: Message, slot: str, number: str | None) -> bool:
        place = _SLOTS.index(slot)
        if slot != "tool_calls" and answer.get(slot) is not None:
            return False
        if number is not None and self._number is not None:
            return number == self._number
        return self._messages[-1] is answer and not any(answer.get(later) for later in _SLOTS[place + 1 :])


def _number(item: Item) -> str | None:
    """The number of the answer that an item is part of, None if its ids are not ours."""
    found = (_OUR_ID.fullmatch(name) for key in ("id", "call_id") if isinstance(name := item.get(key), str))
    numbers = (next(filter(None, match.groups())) for match in found if match)
    return next((str(int(number)) for number in numbers), None)


def _is_empty(answer: Message) -> bool:
    return answer["content"] is None and not answer.get("reasoning_content") and not answer.get("tool_calls")


def _follow_reference(name: str, reference: Item, stored: Mapping[str, Item]) -> Item:
    item = stored.get(str(reference.get("id")))
    if item is None:
        raise HttpError(
            400,
            "item_not_found",
            f"{name} refers to {reference.get('id')!r:.200}: no such item of a stored response of this endpoint",
            f"{name}.id",
        )
    return item


def _read_message(folding: _Folding, name: str, item: Item) -> None:
    role = item.get("role")
    if role not in _ROLES:
        raise invalid(f"{name}.role", role, f"one of {', '.join(_ROLES)}")
    text = _text(f"{name}.content", item.get("content"))
    if role == "assistant":
        folding.answer("content", item)["content"] = text
    else:
        folding.add({"role": role, "content": text})


def _read_call(folding: _Folding, name: str, item: Item) -> None:
    call_id, function, arguments = (_string(name, item, key) for key in ("call_id", "name", "arguments"))
    call = {"id": call_id, "type": "function", "function": {"name": function, "arguments": arguments}}
    folding.answer("tool_calls", item).setdefault("tool_calls", []).append(call)


def _read_result(folding: _Folding, name: str, item: Item) -> None:
    content = _text(f"{name}.output", item.get("output"))
    folding.add({"role": "tool", "tool_call_id": _string(name, item, "call_id"), "content": content})


def _read_reasoning(folding: _Folding, name: str, item: Item) -> None:
    parts = item.get("content") or []
    if not isinstance(parts, list) or not all(_is_text(part, ("reasoning_text",)) for part in parts):
        raise invalid(f"{name}.content", parts, "a list of reasoning_text parts")
    text = "".join(part["text"] for part in parts)
    folding.answer("reasoning_content", item)["reasoning_content"] = text or None


_READERS: dict[str, Callable[[_Folding, str, Item], None]] = {
    "message": _read_message,
    "function_call": _read_call,
    "function_call_output": _read_result,
    "reasoning": _read_reasoning,
}


def _string(name: str, item: Item, key: str) -> str:
    value = item.get(key)
    if not isinstance(value, str):
        raise invalid(f"{name}.{key}", value, "a string")
    return value


def _text(name: str, content: object) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise invalid(name, content, "text or a list of parts")
    for part in content:
        if not _is_text(part, _TEXT_PARTS):
            raise invalid(name, part, f"text or a list of {' and '.join(_TEXT_PARTS)} parts")
    return "".join(part["text"] for part in content)


def _is_text(part: object, kinds: Sequence[str]) -> bool:
    return isinstance(part, Mapping) and part.get("type") in kinds and isinstance(part.get("text"), str)
