"""The responses that a request to /v1/responses continues, from the store: also those of another process."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import sqlalchemy as sa

from astune.gateway.responses_items import output_items
from astune.gateway.responses_request import StoredResponses
from astune.online.service.callers import Caller, History, may_be_known
from astune.online.store.requests import RecordedRequest, find_request, load_conversation

PREFIX = "resp_"
_ITEM = re.compile(r"(?:rs|msg|fc)_([0-9a-f]+_\d+)(?:_\d+)?")
_MOST = 100
"""Items that one request may refer to by id."""


def load_stored_responses(connection: sa.Connection, body: object, whose: Caller) -> StoredResponses:
    """Load the responses that `body` refers to, if they are there and belong to the caller."""
    stored = StoredResponses()
    for msg_id in list(dict.fromkeys(_find_names(body)))[:_MOST]:
        request = _request(connection, msg_id)
        if request is None or request.instructions is None or request.redacted:
            continue
        if (request.client, request.user) != (whose.client, whose.user):
            continue
        response = _answer_as_given(request, whose)
        stored.conversations[msg_id] = (*request.messages[request.instructions :], response)
        items = output_items(response, msg_id.removeprefix(PREFIX), truncated=False, logprobs=[])
        stored.items.update((item["id"], item) for item in items)
    return stored


def _answer_as_given(request: RecordedRequest, whose: Caller) -> dict[str, Any]:
    """The answer as the agent got it: with `parallel_tool_calls: false` only the first call. The digest of the history
    shows which it was."""
    recorded = request.turns[0]
    response = dict(recorded.turn.response)
    first = {**response, "tool_calls": (response.get("tool_calls") or [])[:1]}
    told = History(request.messages, whose).digest_with(first) if len(response.get("tool_calls") or ()) > 1 else None
    return first if told == recorded.history else response


def refers(body: object) -> bool:
    """True if the body continues an earlier response."""
    return next(_find_names(body), None) is not None


def _find_names(body: object) -> Iterator[str]:
    """The ids of the responses that it names, or whose items it names."""
    if not isinstance(body, Mapping):
        return
    previous, items = body.get("previous_response_id"), body.get("input")
    if isinstance(previous, str):
        yield previous
    for item in items if isinstance(items, list) else ():
        if isinstance(item, Mapping) and item.get("type") == "item_reference" and isinstance(item.get("id"), str):
            found = _ITEM.fullmatch(item["id"])
            if found:
                yield f"{PREFIX}{found[1]}"


def _request(connection: sa.Connection, msg_id: str) -> RecordedRequest | None:
    conversation = find_request(connection, msg_id) if may_be_known(msg_id) else None
    if conversation is None:
        return None
    return next(each for each in load_conversation(connection, conversation) if each.msg_id == msg_id)
