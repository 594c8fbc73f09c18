"""`/v1/responses` as data: a request body in, a response or its events out.

What an option comes to where a policy is trained is told in `chat_completions`; it is the same here. Besides:

- `previous_response_id` and items given by id continue what this endpoint stored (`StoredResponses`). As at OpenAI,
  `instructions` are those of this request alone.
- Reasoning comes as the text of a `reasoning` item. An agent may send the item back or leave it out: what was sampled
  is known. So `reasoning.encrypted_content` may be asked for, and has nothing to add.
- `message.output_text.logprobs` are those of all tokens of the answer, its reasoning and its calls too; an answer
  without a message has nowhere to show them.
- Tools that OpenAI runs itself are refused.
"""

from __future__ import annotations

from typing import Any

from astune.context_tracker.prompt.messages import Message
from astune.context_tracker.tracker import ChatRequest
from astune.gateway.api_request import (
    REASONING,
    VERBOSITY,
    Known,
    notes_in,
    read_fields,
    sampling_fields,
)
from astune.gateway.http import not_supported
from astune.gateway.messages import asks_for_json, check_strict, force_json, read_tool_choice, strict_note
from astune.gateway.responses_items import fold
from astune.gateway.responses_request import ResponsesRequest, StoredResponses
from astune.support.http.service import Fields, HttpError, invalid

# fmt: off
KNOWN = Known(
    honoured=frozenset((
        "input", "instructions", "tools", "tool_choice", "parallel_tool_calls", "text", "reasoning", "include",
        "previous_response_id", "store", "stream", "max_output_tokens", "temperature", "top_p", "metadata", "model",
    )),
    ignored=frozenset((
        "user", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "max_tool_calls",
    )),
    neutral={
        "background": (False,),
        "truncation": ("disabled",),
        "top_logprobs": (0,),
        "stream_options": ({}, {"include_obfuscation": False}),
    },
    instead={
        "top_logprobs": "Only those of the sampled tokens are known: include=['message.output_text.logprobs'].",
        "truncation": "A prompt that is too long is an error: shorten the history in the agent.",
        "conversation": "Use previous_response_id.",
        "prompt": "Use instructions.",
        "max_tokens": "Use max_output_tokens.",
        "messages": "Use input.",
        "response_format": "Use text.format.",
        "top_k": "Set astune.rollout.top_k.",
        "chat_template_kwargs": "Set astune.model.chat_template_kwargs.",
    },
)
# fmt: on
_REASONING = {"effort": REASONING, "summary": REASONING, "generate_summary": REASONING}
_TEXT = {"verbosity": VERBOSITY}
"""Options that the OpenAI Agents SDK sends where an agent has no model name, or one of gpt-5, and the notes on them."""
_LOGPROBS = "message.output_text.logprobs"
_INCLUDES = (_LOGPROBS, "reasoning.encrypted_content")
_TOOL_SHAPE = '{"type": "function", "name": ..., ...}'
_TOOL_FIELDS = ("name", "description", "parameters")


def parse_response(body: object, stored: StoredResponses) -> ResponsesRequest:
    """The request body as a `ResponsesRequest`.

    Raises:
        HttpError: 400, naming the field that is wrong, unknown or not supported.
    """
    fields = read_fields(body, KNOWN)
    tools = fields.take("tools", list, "a list of tools", [])
    notes = (*notes_in(fields, "reasoning", _REASONING), *notes_in(fields, "text", _TEXT, honoured="format"))
    instructions = fields.take("instructions", str, "a string", "")
    system = ({"role": "system", "content": instructions},) if instructions else ()
    conversation = _conversation(fields, stored)
    include = fields.take("include", list, "a list", [])
    for index, name in enumerate(include):
        if name not in _INCLUDES:
            raise invalid(f"include[{index}]", name, f"one of {', '.join(_INCLUDES)}")
    return ResponsesRequest(
        request=ChatRequest(
            messages=(*system, *conversation),
            **_read_shape(fields),
            **sampling_fields(fields, "max_output_tokens"),
        ),
        conversation=conversation,
        stream=fields.flag("stream"),
        store=fields.flag("store", True),
        logprobs=_LOGPROBS in include,
        parallel_tool_calls=fields.flag("parallel_tool_calls", True),
        echo=_echo(fields),
        stored=stored,
        notes=(*notes, *strict_note(tools, fields.get("text", {}).get("format"))),
    )


def _conversation(fields: Fields, stored: StoredResponses) -> tuple[Message, ...]:
    """The messages of the request after what it continues."""
    given = fields.get("input", [])
    if not isinstance(given, (str, list)):
        raise invalid("input", given, "text or a list of items")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    conversation = (*_previous(fields, stored), *fold(items, stored.items))
    if not conversation:
        raise invalid("input", given, "text or a list with at least one message")
    return conversation


def _previous(fields: Fields, stored: StoredResponses) -> tuple[Message, ...]:
    name = "previous_response_id"
    if name not in fields:
        return ()
    response_id = fields.take(name, str, "a string")
    if response_id not in stored.conversations:
        known = ", ".join(stored.conversations) or "none"
        message = f"{name}={response_id!r:.200}: no stored response of this endpoint has this id. There are: {known}"
        raise HttpError(400, "previous_response_not_found", message, name)
    return stored.conversations[response_id]


def _read_shape(fields: Fields) -> dict[str, Any]:
    """Read the tools and the shape that the answer must have as arguments of a `ChatRequest`."""
    tools = tuple(_tool(i, tool) for i, tool in enumerate(fields.get("tools", ())))
    choice = fields.get("tool_choice", "auto")
    if isinstance(choice, dict) and choice.get("type") == "function" and isinstance(choice.get("name"), str):
        choice = {"type": "function", "function": {"name": choice["name"]}}
    elif choice not in ("auto", "none", "required"):
        raise invalid("tool_choice", choice, f"'auto', 'none', 'required' or {_TOOL_SHAPE}")
    arguments = read_tool_choice(choice, tools)
    form = fields.get("text", {}).get("format")
    if form and asks_for_json("text.format", form):
        force_json(arguments)
    return arguments


def _tool(index: int, tool: object) -> Message:
    """A function in the shape of chat completions, which templates are made for. `strict` stays behind, as there."""
    name = f"tools[{index}]"
    if not isinstance(tool, dict):
        raise invalid(name, tool, _TOOL_SHAPE)
    if tool.get("type") != "function":
        raise not_supported(name, f"tools of type {tool.get('type')!r:.200} are not supported here, only functions")
    if not isinstance(tool.get("name"), str):
        raise invalid(name, tool, _TOOL_SHAPE)
    for key, value in tool.items():
        if key == "strict":
            check_strict(f"{name}.strict", value)
        elif key not in (*_TOOL_FIELDS, "type") and value not in (None, False):
            raise not_supported(f"{name}.{key}", f"{name}.{key}={value!r:.200} is not supported here")
    return {"type": "function", "function": {key: tool[key] for key in _TOOL_FIELDS if tool.get(key) is not None}}


def _echo(fields: Fields) -> dict[str, Any]:
    function = {"description": None, "parameters": None, "strict": None}
    return {
        "model": fields.take("model", str, "a string", ""),
        "instructions": fields.get("instructions"),
        "previous_response_id": fields.get("previous_response_id"),
        "tools": [{**function, **tool} for tool in fields.get("tools", [])],
        "tool_choice": fields.get("tool_choice", "auto"),
        "parallel_tool_calls": fields.get("parallel_tool_calls", True),
        "text": {"format": fields.get("text", {}).get("format") or {"type": "text"}},
        "reasoning": {"effort": None, "summary": None},
        "max_output_tokens": fields.get("max_output_tokens"),
        "temperature": fields.get("temperature"),
        "top_p": fields.get("top_p"),
        "truncation": "disabled",
        "background": False,
        "store": fields.get("store", True),
        "metadata": fields.take("metadata", dict, "an object", {}),
        "user": fields.get("user"),
    }
