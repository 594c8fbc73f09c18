"""Anthropic's `/v1/messages` as data: a request body in, a message or its events out.

What an option comes to where a policy is trained is told in `chat_completions`, and what its messages become in
`anthropic_blocks`. Besides:

- Thinking comes back as it was sampled. An agent may send it back or leave it out: what was sampled is known.
- An answer that the request begins (a last message of the assistant) is refused, as Anthropic's newer models do.
- Tools that Anthropic defines or runs itself are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from astune.context_tracker.calls import find_stop
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.context_tracker.prompt.messages import Message
from astune.context_tracker.tracker import ChatAnswer, ChatRequest
from astune.gateway.anthropic_blocks import content_blocks, fold_messages, join_text, read_string
from astune.gateway.api_request import (
    POSITIVE,
    REASONING,
    Known,
    notes_in,
    read_fields,
    read_stop,
    reasoning_tokens,
    sampling_fields,
    show_message,
)
from astune.gateway.http import not_supported
from astune.gateway.messages import check_strict, force_json, read_tool_choice, strict_note
from astune.support.http.service import Fields, HttpError, invalid, to_json

# fmt: off
KNOWN = Known(
    honoured=frozenset((
        "messages", "system", "tools", "tool_choice", "output_config", "thinking", "stop_sequences", "stream",
        "max_tokens", "temperature", "top_p", "model",
    )),
    ignored=frozenset((
        "metadata", "service_tier", "cache_control", "diagnostics", "inference_geo", "speed", "user_profile_id",
        "workspace_id",
    )),
    neutral={
        "context_management": ({}, {"edits": []}, {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}),
        "mcp_servers": ([],),
    },
    instead={
        "context_management": "Shorten the history in the agent.",
        "mcp_servers": "Give the agent their tools: it calls them itself.",
        "top_k": "Set astune.rollout.top_k.",
        "stop": "Use stop_sequences.",
        "output_format": "Use output_config.format.",
        "chat_template_kwargs": "Set astune.model.chat_template_kwargs.",
    },
)
# fmt: on
_THINKING = ("enabled", "disabled", "adaptive", "between_tools")
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_TOOL_SHAPE = '{"name": ..., "input_schema": {...}, ...}'
_TOOL_FIELDS = ("type", "name", "description", "input_schema", "strict", "cache_control", "eager_input_streaming")
_NEUTRAL_OF_A_TOOL: Mapping[str, Any] = {"defer_loading": False, "input_examples": [], "allowed_callers": ["direct"]}


@dataclass(frozen=True)
class MessagesRequest:
    """A parsed request."""

    prompt_field: ClassVar[str] = "messages"
    n: ClassVar[int] = 1

    request: ChatRequest
    model: str
    stream: bool
    parallel_tool_calls: bool
    notes: tuple[str, ...]

    def body(self, answers: Sequence[ChatAnswer], chat_format: ChatFormat) -> dict[str, Any]:
        (answer,) = answers
        message = show_message(answer, parallel_tool_calls=self.parallel_tool_calls)
        return {
            "id": f"msg_{answer.answer_id}",
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content_blocks(message, answer.answer_id),
            **self._end(answer, chat_format),
            "usage": _usage(answer, chat_format),
        }

    def events(self, answers: Sequence[ChatAnswer], chat_format: ChatFormat) -> Iterator[str]:
        """The events of a stream: each block begins, is said in one piece, and ends."""
        for event in _events(self.body(answers, chat_format)):
            yield f"event: {event['type']}\ndata: {to_json(event)}\n\n"

    def _end(self, answer: ChatAnswer, chat_format: ChatFormat) -> dict[str, Any]:
        """Why the answer ended. Calls are to be run, whatever else ended it."""
        reasons = {"length": "max_tokens", "tool_calls": "tool_use", "stop": "end_turn"}
        reason, stop = reasons[answer.finish_reason], None
        if reason == "end_turn":
            _, stop = find_stop(chat_format, self.request.stop, answer.turn.output_ids)
        return {"stop_reason": reason if stop is None else "stop_sequence", "stop_sequence": stop}


def _usage(answer: ChatAnswer, chat_format: ChatFormat) -> dict[str, Any]:
    return {
        "input_tokens": answer.prompt_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": answer.completion_tokens,
        "output_tokens_details": {"thinking_tokens": reasoning_tokens(answer, chat_format)},
    }


def _events(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    end = {name: message[name] for name in ("stop_reason", "stop_sequence")}
    usage = {**message["usage"], "output_tokens": 0, "output_tokens_details": {"thinking_tokens": 0}}
    yield {"type": "message_start", "message": {**message, **dict.fromkeys(end), "content": [], "usage": usage}}
    for index, block in enumerate(message["content"]):
        begun, deltas = _pieces(block)
        yield {"type": "content_block_start", "index": index, "content_block": {**block, **begun}}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    yield {"type": "message_delta", "delta": end, "usage": message["usage"]}
    yield {"type": "message_stop"}


def _pieces(block: Mapping[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The fields that are empty when a block begins, and the pieces that fill them."""
    if block["type"] == "text":
        return {"text": ""}, [{"type": "text_delta", "text": block["text"]}]
    if block["type"] == "tool_use":
        return {"input": {}}, [{"type": "input_json_delta", "partial_json": to_json(block["input"])}]
    pieces = [{"type": f"{part}_delta", part: block[part]} for part in ("thinking", "signature")]
    return {"thinking": "", "signature": ""}, pieces


def parse_messages(body: object) -> MessagesRequest:
    """The request body as a `MessagesRequest`.

    Raises:
        HttpError: 400, naming the field that is wrong, unknown or not supported.
    """
    fields = _read(body)
    fields.take("max_tokens", int, POSITIVE)
    return _parse(fields)


def parse_count(body: object) -> MessagesRequest:
    """The body of a request to count the tokens of a prompt: that of a message, which need not limit its answer."""
    return _parse(_read(body))


def _read(body: object) -> Fields:
    if isinstance(body, Mapping) and body.get("thread") is not None:
        # By this code Anthropic's tool runner knows to send the whole history instead.
        message = "'thread' is not supported here: send the whole conversation as messages"
        raise HttpError(400, "thread_unsupported_request", message, "thread")
    return read_fields(body, KNOWN)


def _parse(fields: Fields) -> MessagesRequest:
    tools = fields.take("tools", list, "a list of tools", [])
    given = fields.take("tool_choice", dict, "an object", {})
    choice = Fields((f"tool_choice.{name}", value) for name, value in given.items())
    system = join_text("system", fields.get("system", ""))
    conversation = fold_messages(fields.take("messages", list, "a list of messages"))
    notes = notes_in(fields, "output_config", {"effort": REASONING}, honoured="format")
    return MessagesRequest(
        request=ChatRequest(
            messages=(*([{"role": "system", "content": system}] if system else ()), *conversation),
            **_read_shape(fields, tools, choice),
            **sampling_fields(fields, "max_tokens"),
            stop=read_stop("stop_sequences", fields.get("stop_sequences", [])),
        ),
        model=fields.take("model", str, "a string", ""),
        stream=fields.flag("stream"),
        parallel_tool_calls=not choice.flag("tool_choice.disable_parallel_tool_use"),
        notes=(*notes, *_note_on_thinking(fields), *strict_note(tools, None)),
    )


def user_of(body: object) -> object:
    """The user who asks, `metadata.user_id`; None if the body does not say."""
    metadata = body.get("metadata") if isinstance(body, Mapping) else None
    return metadata.get("user_id") if isinstance(metadata, Mapping) else None


def _note_on_thinking(fields: Fields) -> Iterator[str]:
    if "thinking" in fields:
        kind = fields.take("thinking", dict, "an object").get("type")
        if kind not in _THINKING:
            raise invalid("thinking.type", kind, f"one of {', '.join(_THINKING)}")
        yield f"thinking is ignored. {REASONING}"


def _read_shape(fields: Fields, tools: Sequence[object], choice: Fields) -> dict[str, Any]:
    """Read the tools and the shape that the answer must have as arguments of a `ChatRequest`."""
    known = tuple(_tool(f"tools[{index}]", tool) for index, tool in enumerate(tools))
    kind = choice.get("tool_choice.type", "auto")
    if kind == "tool":
        name = choice.take("tool_choice.name", str, "a string")
        arguments = read_tool_choice({"type": "function", "function": {"name": name}}, known)
    elif isinstance(kind, str) and kind in _CHOICES:
        arguments = read_tool_choice(_CHOICES[kind], known)
    else:
        raise invalid("tool_choice.type", kind, f"one of {', '.join((*_CHOICES, 'tool'))}")
    form = fields.take("output_config", dict, "an object", {}).get("format")
    if form is not None:
        kind = form.get("type") if isinstance(form, dict) else None
        if kind != "json_schema" or not isinstance(form.get("schema"), dict):
            raise invalid("output_config.format", form, '{"type": "json_schema", "schema": {...}}')
        force_json(arguments)
    return arguments


def _tool(name: str, tool: object) -> Message:
    """A function in the shape of chat completions, which templates are made for. `strict` stays behind, as there."""
    if not isinstance(tool, dict):
        raise invalid(name, tool, _TOOL_SHAPE)
    if (kind := tool.get("type")) not in (None, "custom"):
        message = f"{name}.type: tools of type {kind!r:.200} are not supported here, only your own"
        raise not_supported(f"{name}.type", message)
    if not isinstance(tool.get("name"), str) or not isinstance(tool.get("input_schema"), dict):
        raise invalid(name, tool, _TOOL_SHAPE)
    check_strict(f"{name}.strict", tool.get("strict"))
    for key, value in tool.items():
        if key not in _TOOL_FIELDS and value is not None and value != _NEUTRAL_OF_A_TOOL.get(key):
            raise not_supported(f"{name}.{key}", f"{name}.{key}={value!r:.200} is not supported here")
    function = {"name": tool["name"]}
    if tool.get("description") is not None:
        function["description"] = read_string(f"{name}.description", tool["description"])
    return {"type": "function", "function": {**function, "parameters": tool["input_schema"]}}
