"""A response as the events of a stream: each item is announced, said in one piece, and finished."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from astune.gateway.api_request import to_json

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
