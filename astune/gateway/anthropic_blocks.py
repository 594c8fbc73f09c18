"""The messages of Anthropic's API and those of chat completions that they stand for, both ways.

    user       text, tool_result, tool_result      results of tools become messages of their own, in their order
    assistant  thinking, text, tool_use            messages that follow each other are one answer, as at Anthropic

Texts of one message are joined without anything between. A result that `is_error` begins with "Error". Arguments of a
call that are no JSON object travel as `{"INVALID_JSON": text}`. `thinking` is signed with the name of its answer, which
nobody checks: clients throw away what has no signature.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from astune.context_tracker.prompt.messages import Message, parse_arguments
from astune.gateway.http import not_supported
from astune.support.http.service import MOST_NESTED, Fields, invalid, is_deep
from astune.support.strict_json import read_json

Block = dict[str, Any]

_BROKEN = "INVALID_JSON"
"""The key under which Anthropic has arguments travel that are no JSON object."""
_AROUND = 10
"""Lists and objects around the arguments in a request that sends them back, and some to spare."""


def content_blocks(message: Message, signature: str) -> list[Block]:
    """The blocks of an answer: its reasoning, its text, its calls. An answer that says nothing has none."""
    blocks: list[Block] = []
    if reasoning := message.get("reasoning_content"):
        blocks.append({"type": "thinking", "thinking": reasoning, "signature": signature})
    if text := message.get("content"):
        blocks.append({"type": "text", "text": text, "citations": None})
    for call in message.get("tool_calls") or ():
        function = call["function"]
        given = _input(function["arguments"])
        blocks.append({"type": "tool_use", "id": call["id"], "name": function["name"], "input": given})
    return blocks


def _input(arguments: str) -> Block:
    """The arguments of a call as an object, from which `_call` makes arguments of the same meaning."""
    try:
        value = read_json(arguments)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict) or parse_arguments(arguments) is None or list(value) == [_BROKEN]:
        return {_BROKEN: arguments}
    if is_deep(value, MOST_NESTED - _AROUND):
        return {_BROKEN: arguments}
    return value


def fold_messages(given: Sequence[object]) -> list[Message]:
    """The messages of a request in the shape of chat completions.

    Raises:
        HttpError: 400, naming the block that is wrong or not supported.
    """
    folded: list[dict[str, Any]] = []
    for index, message in enumerate(given):
        name = f"messages[{index}]"
        role = message.get("role") if isinstance(message, dict) else None
        if not isinstance(message, dict) or role not in ("user", "assistant", "system"):
            raise invalid(f"{name}.role", role, "one of user, assistant, system")
        content = message.get("content")
        if role == "system":
            folded.append({"role": role, "content": join_text(f"{name}.content", content)})
        elif role == "user":
            folded += _read_user(f"{name}.content", content)
        else:
            if not folded or folded[-1]["role"] != "assistant":
                folded.append({"role": role, "content": None})
            _add_to_answer(folded[-1], f"{name}.content", content)
    if not folded:
        raise invalid("messages", given, "a list with at least one message")
    if folded[-1]["role"] == "assistant":
        last = f"messages[{len(given) - 1}]"
        raise not_supported(last, f"{last} begins the answer (prefill), which is not supported here")
    return [*folded]


def _blocks(name: str, content: object) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """The place, type and fields of each block. A text is one block."""
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise invalid(name, content, "text or a list of blocks")
    for index, block in enumerate(content):
        if not isinstance(block, dict) or not isinstance(block.get("type"), str):
            raise invalid(f"{name}[{index}]", block, '{"type": ..., ...}')
        yield f"{name}[{index}]", block["type"], block


def join_text(name: str, content: object) -> str:
    """The text of blocks of text."""
    return "".join(_text_of(*block) for block in _blocks(name, content))


def _text_of(name: str, kind: str, block: Mapping[str, Any], others: tuple[str, ...] = ()) -> str:
    if kind != "text":
        known = ", ".join(("text", *others))
        message = f"{name}.type: blocks of type {kind!r:.200} are not supported here, only {known}"
        raise not_supported(f"{name}.type", message)
    return read_string(f"{name}.text", block.get("text"))


def read_string(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise invalid(name, value, "a string")
    return value


def _read_user(name: str, content: object) -> Iterator[dict[str, Any]]:
    """The results of tools and the texts between them, in their order."""
    if content == []:
        raise invalid(name, content, "text or at least one block")
    texts: list[str] = []
    for place, kind, block in _blocks(name, content):
        if kind != "tool_result":
            texts.append(_text_of(place, kind, block, ("tool_result",)))
            continue
        if texts:
            yield {"role": "user", "content": "".join(texts)}
            texts = []
        yield _result(place, block)
    if texts:
        yield {"role": "user", "content": "".join(texts)}


def _result(name: str, block: Mapping[str, Any]) -> dict[str, Any]:
    content = block.get("content")
    text = "" if content is None else join_text(f"{name}.content", content)
    if Fields({f"{name}.is_error": block.get("is_error")}).flag(f"{name}.is_error") and not text.lower().startswith(
        "error"
    ):
        text = f"Error: {text}"
    return {
        "role": "tool",
        "tool_call_id": read_string(f"{name}.tool_use_id", block.get("tool_use_id")),
        "content": text,
    }


def _add_to_answer(answer: dict[str, Any], name: str, content: object) -> None:
    """Add the blocks of a message to the answer that they are part of."""
    for place, kind, block in _blocks(name, content):
        if kind == "tool_use":
            answer.setdefault("tool_calls", []).append(_call(place, block))
        elif kind == "thinking":
            thought = read_string(f"{place}.thinking", block.get("thinking"))
            answer["reasoning_content"] = answer.get("reasoning_content", "") + thought
        elif kind != "redacted_thinking":  # which only the model that wrote it can read
            text = _text_of(place, kind, block, ("thinking", "tool_use"))
            answer["content"] = (answer["content"] or "") + text


def _call(name: str, block: Mapping[str, Any]) -> Message:
    function = {"name": read_string(f"{name}.name", block.get("name"))}
    given = block.get("input")
    if not isinstance(given, dict):
        raise invalid(f"{name}.input", given, "an object")
    broken = given.get(_BROKEN) if len(given) == 1 else None
    function["arguments"] = broken if isinstance(broken, str) else json.dumps(given, ensure_ascii=False)
    return {"id": read_string(f"{name}.id", block.get("id")), "type": "function", "function": function}
