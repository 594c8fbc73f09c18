"""OpenAI's chat completions as data: a request body in, response bodies out.

No option silently does nothing. A field is honoured (`_HONOURED`), cannot change a token (`_IGNORED`), is
accepted at the value that asks for nothing (`_NEUTRAL`), or is refused with a 400 that names it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from astune.context_tracker.tracker import ChatAnswer, ChatRequest
from astune.gateway.errors import invalid, unsupported
from astune.gateway.fields import Known, flag, get, integer, number, read_fields

Pieces = Callable[[Sequence[int]], list[str]]

# fmt: off
_HONOURED = frozenset((
    "messages", "tools", "tool_choice", "stream", "stream_options", "max_tokens", "max_completion_tokens",
    "temperature", "top_p", "seed", "logprobs", "return_token_ids", "model",
))
_IGNORED = frozenset((
    "user", "store", "metadata", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
))
# fmt: on
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "stop": ([], ""),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "top_logprobs": (0,),
    "parallel_tool_calls": (True,),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
}
_INSTEAD = {
    "n": "Ask once for each answer.",
    "top_k": "Set astune.rollout.top_k.",
    "chat_template_kwargs": "Set astune.model.chat_template_kwargs.",
    "enable_thinking": "Set astune.model.chat_template_kwargs.",
}
_KNOWN = Known(_HONOURED, _IGNORED, _NEUTRAL, _INSTEAD)
_ROLES = ("system", "developer", "user", "assistant", "tool")


@dataclass(frozen=True)
class Call:
    """A parsed request: what goes to the tracker, and how the answer is to look."""

    request: ChatRequest
    model: str
    stream: bool
    include_usage: bool
    logprobs: bool
    token_ids: bool


def parse_call(body: object) -> Call:
    """The request body as a `Call`.

    Raises:
        ApiError: 400, naming the field that is wrong, unknown or not supported.
    """
    fields = read_fields(body, _KNOWN)
    stream_options = get(fields, "stream_options", dict, "an object", {})
    return Call(
        request=ChatRequest(
            messages=_messages(fields),
            tools=_tools(fields),
            max_tokens=_max_tokens(fields),
            temperature=number(fields, "temperature", lambda t: 0 <= t < math.inf, "a number of at least 0"),
            top_p=number(fields, "top_p", lambda p: 0 < p <= 1, "a number above 0, at most 1"),
            seed=integer(fields, "seed"),
        ),
        model=get(fields, "model", str, "a string", ""),
        stream=flag(fields, "stream"),
        include_usage=bool(stream_options.get("include_usage", False)),
        logprobs=flag(fields, "logprobs"),
        token_ids=flag(fields, "return_token_ids"),
    )


def completion(answer: ChatAnswer, call: Call, pieces: Pieces) -> dict[str, Any]:
    """The body of an answer that is not streamed. `pieces` gives one text per token id."""
    choice = {
        "index": 0,
        "message": {"refusal": None, **answer.message},
        "logprobs": _logprobs(answer, call, pieces),
        "finish_reason": answer.finish_reason,
        **_token_ids(answer, call, "token_ids"),
    }
    return {
        **_envelope(answer, call, "chat.completion"),
        "choices": [choice],
        "usage": _usage(answer),
        **_token_ids(answer, call, "prompt_token_ids"),
    }


def chunks(answer: ChatAnswer, call: Call, pieces: Pieces) -> Iterator[dict[str, Any]]:
    """The bodies of a streamed answer: role, reasoning, content, tool calls, finish, usage."""
    envelope = _envelope(answer, call, "chat.completion.chunk")
    if call.include_usage:
        envelope["usage"] = None

    def chunk(delta: dict[str, Any], finish_reason: str | None = None, **extra: Any) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason} | extra
        return {**envelope, "choices": [choice]}

    message = answer.message
    yield chunk({"role": "assistant", "content": ""}) | _token_ids(answer, call, "prompt_token_ids")
    if message.get("reasoning_content"):
        yield chunk({"reasoning_content": message["reasoning_content"]})
    if message.get("content"):
        yield chunk({"content": message["content"]})
    for index, tool_call in enumerate(message.get("tool_calls") or ()):
        yield chunk({"tool_calls": [{"index": index, **tool_call}]})
    extra = {"logprobs": _logprobs(answer, call, pieces), **_token_ids(answer, call, "token_ids")}
    yield chunk({}, answer.finish_reason, **extra)
    if call.include_usage:
        yield {**envelope, "choices": [], "usage": _usage(answer)}


def _envelope(answer: ChatAnswer, call: Call, kind: str) -> dict[str, Any]:
    return {"id": answer.answer_id, "object": kind, "created": int(time.time()), "model": call.model}


def _usage(answer: ChatAnswer) -> dict[str, int]:
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
        "total_tokens": answer.prompt_tokens + answer.completion_tokens,
    }


def _logprobs(answer: ChatAnswer, call: Call, pieces: Pieces) -> dict[str, Any] | None:
    if not call.logprobs:
        return None
    content = []
    for text, logprob in zip(pieces(answer.turn.output_ids), answer.turn.logprobs, strict=True):
        content.append({"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []})
    return {"content": content, "refusal": None}


def _token_ids(answer: ChatAnswer, call: Call, name: str) -> dict[str, Any]:
    if not call.token_ids:
        return {}
    return {name: list(answer.turn.prompt_ids if name == "prompt_token_ids" else answer.turn.output_ids)}


def _max_tokens(fields: Mapping[str, Any]) -> int | None:
    """The smaller one, where a request carries both the older and the newer name."""
    limits = [integer(fields, name, at_least=1) for name in ("max_tokens", "max_completion_tokens")]
    return min((limit for limit in limits if limit is not None), default=None)


def _messages(fields: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    messages = get(fields, "messages", list, "a list of messages", None)
    if not messages:
        raise invalid("messages", messages, "a list with at least one message")
    for i, message in enumerate(messages):
        if not isinstance(message, dict):
            raise invalid(f"messages[{i}]", message, "an object")
        if message.get("role") not in _ROLES:
            raise invalid(f"messages[{i}].role", message.get("role"), f"one of {', '.join(_ROLES)}")
        _check_content(f"messages[{i}].content", message.get("content"))
        _check_calls(f"messages[{i}].tool_calls", message.get("tool_calls"))
    return tuple(messages)


def _check_content(name: str, content: object) -> None:
    if content is None or isinstance(content, str):
        return
    if not isinstance(content, list):
        raise invalid(name, content, "text or a list of parts")
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise invalid(name, part, "text or a list of text parts (images and audio are not supported)")


def _check_calls(name: str, calls: object) -> None:
    if calls is None:
        return
    if not isinstance(calls, list):
        raise invalid(name, calls, "a list of tool calls")
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise invalid(name, call, 'a list of {"id": ..., "type": "function", "function": {"name": ..., ...}}')


def _tools(fields: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """The tools that the model is shown: none when `tool_choice` is "none"."""
    tools = get(fields, "tools", list, "a list of tools", [])
    for i, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise invalid(f"tools[{i}]", tool, '{"type": "function", "function": {"name": ..., ...}}')
    choice = fields.get("tool_choice", "auto")
    if choice not in ("auto", "none"):
        raise unsupported(
            "tool_choice",
            f"tool_choice={choice!r} is not supported: a policy answers freely while it is trained. "
            "Use 'auto' or 'none'.",
        )
    return () if choice == "none" else tuple(tools)
