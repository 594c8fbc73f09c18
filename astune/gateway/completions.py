"""`/v1/completions` as data: a raw text, or token ids, to be continued.

The prompt goes to the engine as it is: no chat template, nothing added. `logprobs: 0` gives the log-probabilities of
the sampled tokens; more would need those of tokens that were not sampled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, ClassVar

from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.context_tracker.tracker import ChatAnswer, ChatRequest
from astune.gateway.api_request import (
    CHOICES,
    DONE,
    INTEGER,
    MOST_CHOICES,
    MOST_INTEGER,
    Known,
    envelope,
    read_fields,
    sampling_fields,
    sse,
    usage,
)
from astune.gateway.http import not_supported
from astune.support.http.service import Fields, invalid

# fmt: off
KNOWN = Known(
    honoured=frozenset((
        "prompt", "n", "stop", "stream", "stream_options", "max_tokens", "temperature", "top_p", "seed", "logprobs",
        "return_token_ids", "model",
    )),
    ignored=frozenset(("user",)),
    neutral={
        "best_of": (1,),
        "echo": (False,),
        "suffix": ("",),
        "frequency_penalty": (0,),
        "presence_penalty": (0,),
        "logit_bias": ({},),
    },
    instead={
        "best_of": "Ask for n answers and choose.",
        "echo": "The prompt is yours already; return_token_ids gives its ids.",
        "top_k": "Set astune.rollout.top_k.",
    },
)
# fmt: on
_PROMPT = "a text or a list of token ids"
_MOST_TOKEN_ID = 2**31 - 1


@dataclass(frozen=True)
class CompletionRequest:
    """A parsed request."""

    prompt_field: ClassVar[str] = "prompt"

    request: ChatRequest
    n: int
    model: str
    stream: bool
    include_usage: bool
    logprobs: bool
    token_ids: bool
    notes: tuple[str, ...] = ()

    def body(self, answers: Sequence[ChatAnswer], chat_format: ChatFormat) -> dict[str, Any]:
        choices = [self._choice(index, answer, chat_format) for index, answer in enumerate(answers)]
        return {**envelope(answers, "text_completion", "cmpl", self.model), "choices": choices, "usage": usage(answers)}

    def events(self, answers: Sequence[ChatAnswer], chat_format: ChatFormat) -> Iterator[str]:
        head = envelope(answers, "text_completion", "cmpl", self.model)
        for index, answer in enumerate(answers):
            yield sse({**head, "choices": [self._choice(index, answer, chat_format)]})
        if self.include_usage:
            yield sse({**head, "choices": [], "usage": usage(answers)})
        yield DONE

    def _choice(self, index: int, answer: ChatAnswer, chat_format: ChatFormat) -> dict[str, Any]:
        choice = {
            "index": index,
            "text": answer.message["content"] or "",
            "logprobs": self._logprobs(answer, chat_format),
            "finish_reason": answer.finish_reason,
        }
        if self.token_ids:
            choice["prompt_token_ids"] = list(answer.turn.prompt_ids)
            choice["token_ids"] = list(answer.turn.output_ids)
        return choice

    def _logprobs(self, answer: ChatAnswer, chat_format: ChatFormat) -> dict[str, Any] | None:
        if not self.logprobs:
            return None
        tokens = chat_format.pieces(answer.turn.output_ids)
        offsets = accumulate((len(token) for token in tokens[:-1]), initial=0)
        return {
            "tokens": tokens,
            "token_logprobs": list(answer.turn.logprobs),
            "top_logprobs": None,
            "text_offset": list(offsets) if tokens else [],
        }


def parse_completion(body: object) -> CompletionRequest:
    """The request body as a `CompletionRequest`.

    Raises:
        HttpError: 400, naming the field that is wrong, unknown or not supported.
    """
    fields = read_fields(body, KNOWN)
    stream_options = Fields(fields.take("stream_options", dict, "an object", {}))
    return CompletionRequest(
        request=ChatRequest(
            messages=(),
            prompt=_prompt(fields),
            **sampling_fields(fields, "max_tokens"),
        ),
        n=fields.whole("n", 1, MOST_CHOICES, CHOICES) if "n" in fields else 1,
        model=fields.take("model", str, "a string", ""),
        stream=fields.flag("stream"),
        include_usage=stream_options.flag("include_usage"),
        logprobs=_logprobs(fields),
        token_ids=fields.flag("return_token_ids"),
    )


def _prompt(fields: Fields) -> str | tuple[int, ...]:
    """The prompt; a list of a single prompt is taken for that prompt."""
    prompt = fields.get("prompt")
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], (str, list)):
        if len(prompt) > 1:
            raise not_supported("prompt", f"prompt has {len(prompt)} prompts; ask once for each.")
        prompt = prompt[0]
    if isinstance(prompt, str) and prompt:
        return prompt
    if (
        isinstance(prompt, list)
        and prompt
        and all(type(each) is int and 0 <= each <= _MOST_TOKEN_ID for each in prompt)
    ):
        return tuple(prompt)
    raise invalid("prompt", prompt, _PROMPT)


def _logprobs(fields: Fields) -> bool:
    if "logprobs" not in fields:
        return False
    asked = fields.whole("logprobs", 0, MOST_INTEGER, f"{INTEGER} of at least 0")
    if asked:
        raise not_supported(
            "logprobs",
            f"logprobs={asked} is not supported here: only those of the sampled tokens are known. Use logprobs=0.",
        )
    return True
