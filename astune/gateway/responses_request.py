"""A parsed request to `/v1/responses`, the response to it, and the responses that later requests may continue."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, ClassVar

from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.context_tracker.prompt.messages import Message
from astune.context_tracker.tracker import ChatAnswer, ChatRequest
from astune.gateway.api_request import shown_message, token_logprobs
from astune.gateway.responses_items import Item, output_items
from astune.gateway.responses_stream import stream_events


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
        message, name = shown_message(answer, parallel_tool_calls=self.parallel_tool_calls), answer.answer_id
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
        "output_tokens_details": {"reasoning_tokens": _reasoning_tokens(answer, chat_format)},
        "total_tokens": answer.prompt_tokens + answer.completion_tokens,
    }


def _reasoning_tokens(answer: ChatAnswer, chat_format: ChatFormat) -> int:
    """The sampled tokens that are part of the text of the reasoning, without the marks around it."""
    reasoning = answer.message.get("reasoning_content")
    if not reasoning:
        return 0
    tokens = chat_format.pieces(answer.turn.output_ids)
    start = "".join(tokens).find(reasoning)
    ends = list(accumulate(map(len, tokens)))
    inside = [end > start and end - len(text) < start + len(reasoning) for text, end in zip(tokens, ends, strict=True)]
    return sum(inside) if start >= 0 else 0
