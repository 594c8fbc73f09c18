"""The shape that every kind of request is parsed into, and its fields, read one kind at a time. Null is as good as
absent, everywhere.

No option silently does nothing. A field is honoured, cannot change a token (ignored), is a wish that is ignored with
a note in the log (noted), is accepted at the value that asks for nothing (neutral), or is refused with a 400 that names
it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Protocol

from starlette.responses import Response

from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.context_tracker.tracker import ChatAnswer, ChatRequest
from astune.errors import nearest
from astune.gateway.http import not_supported
from astune.sampling import MOST_TEMPERATURE, TEMPERATURE, TOP_P
from astune.support.http.service import Fields, HttpError, invalid, json_response, to_json

REASONING = "How the policy reasons is set by astune.model.chat_template_kwargs."
VERBOSITY = "Say in the prompt how long an answer should be."
INTEGER = "an integer of 64 bits"
POSITIVE = f"{INTEGER} of at least 1"
MOST_INTEGER = 2**63 - 1


@dataclass(frozen=True)
class Known:
    """The fields of one kind of request."""

    honoured: Collection[str]
    ignored: Collection[str]
    """Fields that cannot change a token, such as labels for the provider's own books."""
    neutral: Mapping[str, tuple[Any, ...]]
    """Values that ask for nothing, of fields that are otherwise refused."""
    noted: Mapping[str, str] = field(default_factory=dict)
    """Texts that are ignored, and what is said of that: a sentence."""
    instead: Mapping[str, str] = field(default_factory=dict)
    """Advice for a field that is refused: a sentence."""


def read_fields(body: object, known: Known) -> Fields:
    """The fields of `body` that are not null.

    Raises:
        HttpError: 400, the body is no object or has a field that is unknown or not supported.
    """
    if not isinstance(body, Mapping):
        raise HttpError(400, "invalid_json", "the body is not a JSON object")
    fields = Fields((name, value) for name, value in body.items() if value is not None)
    for name, value in fields.items():
        if name in known.noted:
            fields.take(name, str, "a string")
        elif name not in known.honoured and name not in known.ignored and value not in known.neutral.get(name, ()):
            raise _not_supported(name, value, known)
    return fields


def _not_supported(name: str, value: object, known: Known) -> HttpError:
    instead = f" {known.instead[name]}" if name in known.instead else ""
    if name in known.neutral:
        return not_supported(name, f"{name}={value!r:.200} is not supported here.{instead}")
    hint = instead or nearest(name, [*known.honoured, *known.noted, *known.neutral])
    return HttpError(400, "unknown_parameter", f"{name!r} is not supported here.{hint}", name)


def notes_in(fields: Fields, name: str, ignored: Mapping[str, str], honoured: str = "") -> Iterator[str]:
    """The notes on ignored options of the object `name`. Null asks for nothing; what is not known is refused."""
    for key, value in fields.take(name, dict, "an object", {}).items():
        if key in ignored and isinstance(value, str):
            yield f"{name}.{key} is ignored. {ignored[key]}"
        elif key in ignored and value is not None:
            raise invalid(f"{name}.{key}", value, "a string")
        elif key != honoured and value is not None:
            raise not_supported(f"{name}.{key}", f"{name}.{key}={value!r:.200} is not supported here")


MOST_STOPS = 4
MOST_CHOICES = 128
CHOICES = f"{POSITIVE}, at most {MOST_CHOICES}"


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


def write_answers(
    parsed: ApiRequest,
    answers: Sequence[ChatAnswer],
    chat_format: ChatFormat,
    headers: Mapping[str, str] | None = None,
) -> Response:
    if parsed.stream:
        events = "".join(parsed.events(answers, chat_format))
        return Response(events, headers=headers, media_type="text/event-stream")
    return json_response(parsed.body(answers, chat_format), headers=headers)


def sampling_fields(fields: Fields, *limits: str) -> dict[str, Any]:
    """Read `temperature`, `top_p`, `seed`, `stop` and the limits of tokens, those that there are, as arguments of a
    `ChatRequest`. Of several limits the smallest holds."""
    read: dict[str, Any] = {}
    if most := [fields.whole(name, 1, MOST_INTEGER, POSITIVE) for name in limits if name in fields]:
        read["max_tokens"] = min(most)
    if "temperature" in fields:
        read["temperature"] = fields.number("temperature", TEMPERATURE, lambda t: 0 <= t <= MOST_TEMPERATURE)
    if "top_p" in fields:
        read["top_p"] = fields.number("top_p", TOP_P, lambda p: 0 < p <= 1)
    if "seed" in fields:
        read["seed"] = fields.whole("seed", -MOST_INTEGER, MOST_INTEGER, INTEGER)
    if "stop" in fields:
        read["stop"] = read_stop("stop", fields["stop"])
    return read


def read_stop(name: str, value: object) -> tuple[str, ...]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, (list, tuple)) or not all(isinstance(text, str) for text in texts):
        raise invalid(name, value, "a text or a list of texts")
    if len(texts) > MOST_STOPS:
        raise invalid(name, value, f"at most {MOST_STOPS} texts")
    return tuple(text for text in texts if text)


def token_logprobs(answer: ChatAnswer, chat_format: ChatFormat) -> list[dict[str, Any]]:
    """The sampled tokens with their log-probabilities; null where the engine gave none."""
    ids = answer.turn.output_ids
    logprobs = (each if math.isfinite(each) else None for each in answer.turn.logprobs)
    rows = zip(chat_format.pieces(ids), chat_format.token_bytes(ids), logprobs, strict=True)
    return [
        {"token": text, "logprob": logprob, "bytes": list(its_bytes), "top_logprobs": []}
        for text, its_bytes, logprob in rows
    ]


def reasoning_tokens(answer: ChatAnswer, chat_format: ChatFormat) -> int:
    """Count the sampled tokens that are part of the text of the reasoning, without the marks around it."""
    reasoning = answer.message.get("reasoning_content")
    if not reasoning:
        return 0
    tokens = chat_format.pieces(answer.turn.output_ids)
    start = "".join(tokens).find(reasoning)
    ends = list(accumulate(map(len, tokens)))
    inside = [end > start and end - len(text) < start + len(reasoning) for text, end in zip(tokens, ends, strict=True)]
    return sum(inside) if start >= 0 else 0


def envelope(answers: Sequence[ChatAnswer], kind: str, prefix: str, model: str) -> dict[str, Any]:
    return {"id": f"{prefix}-{answers[0].answer_id}", "object": kind, "created": int(time.time()), "model": model}


def show_message(answer: ChatAnswer, *, parallel_tool_calls: bool) -> dict[str, Any]:
    """The message as the agent gets it: with `parallel_tool_calls: false` only the first of its calls."""
    calls = answer.message.get("tool_calls")
    if parallel_tool_calls or not calls:
        return answer.message
    return {**answer.message, "tool_calls": calls[:1]}


def usage(answers: Sequence[ChatAnswer]) -> dict[str, int]:
    """Count the tokens of all answers. The prompt counts once, as they are answers to the same one."""
    prompt, sampled = answers[0].prompt_tokens, sum(answer.completion_tokens for answer in answers)
    return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}


def sse(body: Mapping[str, Any]) -> str:
    return f"data: {to_json(body)}\n\n"


DONE = "data: [DONE]\n\n"
