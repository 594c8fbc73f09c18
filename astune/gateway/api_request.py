"""The shape that every kind of request is parsed into, and the parts that requests and answers have in common."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.context_tracker.tracker import ChatAnswer, ChatRequest
from astune.gateway.errors import invalid
from astune.gateway.fields import Fields, integer, number
from astune.sampling import MOST_TEMPERATURE, TEMPERATURE, TOP_P

MOST_STOPS = 4
MOST_CHOICES = 128
to_json = json.JSONEncoder(separators=(",", ":")).encode


class ApiRequest(Protocol):
    """A parsed request of any endpoint: the `ChatRequest` for the tracker, and how its answers are written."""

    @property
    def prompt_field(self) -> str:
        """The field of the request body that the prompt is made of."""

    @property
    def request(self) -> ChatRequest: ...

    @property
    def n(self) -> int: ...

    @property
    def stream(self) -> bool: ...

    @property
    def notes(self) -> Sequence[str]:
        """A sentence for each wish of the request that is not fulfilled."""

    def body(self, answers: Sequence[ChatAnswer], chat_format: ChatFormat) -> dict[str, Any]:
        """The answer that is not streamed."""

    def events(self, answers: Sequence[ChatAnswer], chat_format: ChatFormat) -> Iterator[str]:
        """The answer as server-sent events, each with its empty line."""


def sampling_fields(fields: Fields) -> dict[str, Any]:
    """`temperature`, `top_p`, `seed` and `stop` as the arguments of a `ChatRequest`."""
    return {
        "temperature": number(fields, "temperature", lambda t: 0 <= t <= MOST_TEMPERATURE, TEMPERATURE),
        "top_p": number(fields, "top_p", lambda p: 0 < p <= 1, TOP_P),
        "seed": integer(fields, "seed"),
        "stop": _stop(fields),
    }


def _stop(fields: Fields) -> tuple[str, ...]:
    value = fields.get("stop", ())
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, (list, tuple)) or not all(isinstance(text, str) for text in texts):
        raise invalid("stop", value, "a text or a list of texts")
    if len(texts) > MOST_STOPS:
        raise invalid("stop", value, f"at most {MOST_STOPS} texts")
    return tuple(text for text in texts if text)


def choices_field(fields: Fields) -> int:
    return integer(fields, "n", at_least=1, at_most=MOST_CHOICES) or 1


def token_logprobs(answer: ChatAnswer, chat_format: ChatFormat) -> list[dict[str, Any]]:
    """The sampled tokens with their log-probabilities; null where the engine gave none."""
    ids = answer.turn.output_ids
    logprobs = (each if math.isfinite(each) else None for each in answer.turn.logprobs)
    rows = zip(chat_format.pieces(ids), chat_format.token_bytes(ids), logprobs, strict=True)
    return [
        {"token": text, "logprob": logprob, "bytes": list(its_bytes), "top_logprobs": []}
        for text, its_bytes, logprob in rows
    ]


def envelope(answers: Sequence[ChatAnswer], kind: str, prefix: str, model: str) -> dict[str, Any]:
    return {"id": f"{prefix}-{answers[0].answer_id}", "object": kind, "created": int(time.time()), "model": model}


def shown_message(answer: ChatAnswer, *, parallel_tool_calls: bool) -> dict[str, Any]:
    """The message that the agent gets: with `parallel_tool_calls: false` only the first of its calls."""
    calls = answer.message.get("tool_calls")
    if parallel_tool_calls or not calls:
        return answer.message
    return {**answer.message, "tool_calls": calls[:1]}


def usage(answers: Sequence[ChatAnswer]) -> dict[str, int]:
    """The prompt counts once, as all answers are to the same one."""
    prompt, sampled = answers[0].prompt_tokens, sum(answer.completion_tokens for answer in answers)
    return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}


def sse(body: Mapping[str, Any]) -> str:
    return f"data: {to_json(body)}\n\n"


DONE = "data: [DONE]\n\n"
