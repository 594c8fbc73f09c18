"""A parsed request to `/v1/responses`, the response to it and its events, and the responses that later requests may
continue. In a stream each item is announced, said in one piece, and finished."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.context_tracker.prompt.messages import Message
from astune.context_tracker.tracker import ChatAnswer, ChatRequest
from astune.gateway.api_request import reasoning_tokens, show_message, token_logprobs
from astune.gateway.responses_items import Item, output_items
from astune.support.http.service import to_json


@dataclass(frozen=True)
class StoredResponses:
    """The responses that an endpoint keeps until its episode is over: the conversation up to and with each answer,
    without instructions, by the id of the response, and the items of the answers by their own ids."""

    conversations: dict[str, tuple[Message, ...]] = field(default_factory=dict)
    items: dict[str, Item] = field(default_factory=dict)


@dataclass(frozen=True)
class ResponsesRequest:
    """A parsed request. `conversation` is what it asks to continue; `echo` are the fields that a response repeats."""

    prompt_field: ClassVar[str] = "input"
    request: ChatRequest
    conversation: tuple[Message, ...]
    stream: bool
    store: bool
    logprobs: bool
    parallel_tool_calls: bool
    echo: Mapping[str, Any]
    stored: StoredResponses
    notes: tuple[str, ...]
    n: int = 1

    def body(self, answers: Sequence[ChatAnswer], chat_format: ChatFormat) -> dict[str, Any]:
        """The response; it is remembered if the request says so."""
        (answer,) = answers
        message, name = show_message(answer, parallel_tool_calls=self.parallel_tool_calls), answer.answer_id
        truncated = answer.finish_reason == "length"
        logprobs = token_logprobs(answer, chat_format) if self.logprobs else []
        output = output_items(message, name, truncated=truncated, logprobs=logprobs)
        if self.store:
            self.stored.conversations[f"resp_{name}"] = (*self.conversation, message)
            self.stored.items.update((item["id"], item) for item in output)
        now = int(time.time())
        return {
            "id": f"resp_{name}",
            "object": "response",
            "created_at": now,
            "completed_at": None if truncated else now,
            "status": "incomplete" if truncated else "completed",
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if truncated else None,
            **self.echo,
            "output": output,
            "usage": _usage(answer, chat_format),
        }

    def events(self, answers: Sequence[ChatAnswer], chat_format: ChatFormat) -> Iterator[str]:
        return stream_events(self.body(answers, chat_format))


def _usage(answer: ChatAnswer, chat_format: ChatFormat) -> dict[str, Any]:
    return {
        "input_tokens": answer.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": answer.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": reasoning_tokens(answer, chat_format)},
        "total_tokens": answer.prompt_tokens + answer.completion_tokens,
    }


Event = dict[str, Any]


def stream_events(response: Mapping[str, Any]) -> Iterator[str]:
    """The server-sent events of a finished response, each with its empty line; numbered from 0."""
    for number, event in enumerate(_events(response)):
        yield f"event: {event['type']}\ndata: {to_json({**event, 'sequence_number': number})}\n\n"


def _events(response: Mapping[str, Any]) -> Iterator[Event]:
    begun = {
        **response,
        "status": "in_progress",
        "output": [],
        "usage": None,
        "completed_at": None,
        "incomplete_details": None,
    }
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for index, item in enumerate(response["output"]):
        begun_item = {
            **item,
            "status": "in_progress",
            **({"arguments": ""} if "arguments" in item else {"content": []}),
        }
        yield {"type": "response.output_item.added", "output_index": index, "item": begun_item}
        place = {"item_id": item["id"], "output_index": index}
        yield from _arguments(item, place) if "arguments" in item else _content(item, place)
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    yield {"type": f"response.{response['status']}", "response": response}


def _arguments(item: Mapping[str, Any], place: Event) -> Iterator[Event]:
    kind, arguments = "response.function_call_arguments", item["arguments"]
    yield {"type": f"{kind}.delta", **place, "delta": arguments}
    yield {"type": f"{kind}.done", **place, "arguments": arguments, "name": item["name"]}


def _content(item: Mapping[str, Any], place: Event) -> Iterator[Event]:
    (part,) = item["content"]
    place = {**place, "content_index": 0}
    logprobs = {"logprobs": part["logprobs"]} if "logprobs" in part else {}
    no_logprobs: Event = {name: [] for name in logprobs}
    kind = f"response.{part['type']}"
    yield {"type": "response.content_part.added", **place, "part": {**part, "text": "", **no_logprobs}}
    if part["text"]:
        yield {"type": f"{kind}.delta", **place, "delta": part["text"], **logprobs}
    yield {"type": f"{kind}.done", **place, "text": part["text"], **logprobs}
    yield {"type": "response.content_part.done", **place, "part": part}
