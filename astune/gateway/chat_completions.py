"""`/v1/chat/completions` as data: a request body in, response bodies out.

What an option comes to where a policy is trained:

- `tool_choice` "required" or a name, and `response_format` with JSON: the first tokens of the answer (the opening of
  a tool call, `{`) are put into the prompt and all that follows is the policy's own. So a JSON schema is not
  enforced, and neither it nor its name reaches the model: say in the prompt what you want. Where tools are offered
  freely, `response_format` forces nothing, as the answer may be a call.
- `tool_choice` "none": the prompt shows the tools all the same, so that the conversation goes on in the same timeline
  (as vLLM does it); what looks like a call is text.
- `parallel_tool_calls: false` gives the agent the first call only. Further ones were sampled, so the history that
  comes back differs from them, and the next turn begins a new timeline.
- `stop`: the text that ends the answer is sampled and trained, but no part of the message.
- `max_tokens` and `max_completion_tokens` lower the run's limit and never raise it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.context_tracker.tracker import ChatAnswer, ChatRequest
from astune.gateway.api_request import (
    CHOICES,
    DONE,
    MOST_CHOICES,
    REASONING,
    VERBOSITY,
    Known,
    envelope,
    read_fields,
    sampling_fields,
    show_message,
    sse,
    token_logprobs,
    usage,
)
from astune.gateway.messages import asks_for_json, force_json, read_messages, read_tool_choice, read_tools, strict_note
from astune.support.http.service import Fields

# fmt: off
KNOWN = Known(
    honoured=frozenset((
        "messages", "tools", "tool_choice", "parallel_tool_calls", "response_format", "n", "stop", "stream",
        "stream_options", "max_tokens", "max_completion_tokens", "temperature", "top_p", "seed", "logprobs",
        "return_token_ids", "model",
    )),
    ignored=frozenset((
        "user", "store", "metadata", "service_tier", "safety_identifier", "prompt_cache_key",
        "prompt_cache_retention", "prediction",
    )),
    noted={"reasoning_effort": REASONING, "verbosity": VERBOSITY},
    neutral={
        "frequency_penalty": (0,),
        "presence_penalty": (0,),
        "logit_bias": ({},),
        "top_logprobs": (0,),
        "modalities": (["text"],),
    },
    instead={
        "top_logprobs": "Only the log-probabilities of the sampled tokens are known: logprobs=true.",
        "top_k": "Set astune.rollout.top_k.",
        "chat_template_kwargs": "Set astune.model.chat_template_kwargs.",
        "enable_thinking": "Set astune.model.chat_template_kwargs.",
        "functions": "Use tools.",
        "function_call": "Use tool_choice.",
    },
)
# fmt: on


@dataclass(frozen=True)
class ChatCompletionRequest:
    """A parsed request."""

    prompt_field: ClassVar[str] = "messages"

    request: ChatRequest
    n: int
    model: str
    stream: bool
    include_usage: bool
    logprobs: bool
    token_ids: bool
    parallel_tool_calls: bool
    notes: tuple[str, ...]

    def body(self, answers: Sequence[ChatAnswer], chat_format: ChatFormat) -> dict[str, Any]:
        choices = [
            {
                "index": index,
                "message": {"refusal": None, **show_message(answer, parallel_tool_calls=self.parallel_tool_calls)},
                **self._end(answer, chat_format),
            }
            for index, answer in enumerate(answers)
        ]
        head = envelope(answers, "chat.completion", "chatcmpl", self.model)
        reply = {**head, "choices": choices, "usage": usage(answers)}
        if self.token_ids:
            reply["prompt_token_ids"] = list(answers[0].turn.prompt_ids)
        return reply

    def events(self, answers: Sequence[ChatAnswer], chat_format: ChatFormat) -> Iterator[str]:
        """The events of a stream: role, reasoning, content, tool calls and end of each answer, then the usage."""
        head = envelope(answers, "chat.completion.chunk", "chatcmpl", self.model)
        if self.include_usage:
            head["usage"] = None
        first = {"prompt_token_ids": list(answers[0].turn.prompt_ids)} if self.token_ids else {}
        for index, answer in enumerate(answers):
            for choice in self._deltas(index, answer, chat_format):
                yield sse({**head, "choices": [choice], **first})
                first = {}
        if self.include_usage:
            yield sse({**head, "choices": [], "usage": usage(answers)})
        yield DONE

    def _deltas(self, index: int, answer: ChatAnswer, chat_format: ChatFormat) -> Iterator[dict[str, Any]]:
        def choice(delta: dict[str, Any], **end: Any) -> dict[str, Any]:
            return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None, **end}

        message = show_message(answer, parallel_tool_calls=self.parallel_tool_calls)
        yield choice({"role": "assistant", "content": ""})
        if message.get("reasoning_content"):
            yield choice({"reasoning_content": message["reasoning_content"]})
        if message.get("content"):
            yield choice({"content": message["content"]})
        for number, tool_call in enumerate(message.get("tool_calls") or ()):
            yield choice({"tool_calls": [{"index": number, **tool_call}]})
        yield choice({}, **self._end(answer, chat_format))

    def _end(self, answer: ChatAnswer, chat_format: ChatFormat) -> dict[str, Any]:
        """Tell how the answer ended, and what was sampled as far as that is asked for."""
        logprobs = {"content": token_logprobs(answer, chat_format), "refusal": None} if self.logprobs else None
        end = {"logprobs": logprobs, "finish_reason": answer.finish_reason}
        return end | {"token_ids": list(answer.turn.output_ids)} if self.token_ids else end


def parse_chat_completion(body: object) -> ChatCompletionRequest:
    """The request body as a `ChatCompletionRequest`.

    Raises:
        HttpError: 400, naming the field that is wrong, unknown or not supported.
    """
    fields = read_fields(body, KNOWN)
    stream_options = Fields(fields.take("stream_options", dict, "an object", {}))
    return ChatCompletionRequest(
        request=ChatRequest(
            messages=read_messages(fields),
            **_read_shape(fields),
            **sampling_fields(fields, "max_tokens", "max_completion_tokens"),
        ),
        n=fields.whole("n", 1, MOST_CHOICES, CHOICES) if "n" in fields else 1,
        model=fields.take("model", str, "a string", ""),
        stream=fields.flag("stream"),
        include_usage=stream_options.flag("include_usage"),
        logprobs=fields.flag("logprobs"),
        token_ids=fields.flag("return_token_ids"),
        parallel_tool_calls=fields.flag("parallel_tool_calls", True),
        notes=(
            *(f"{name} is ignored. {KNOWN.noted[name]}" for name in fields if name in KNOWN.noted),
            *strict_note(fields.get("tools", ()), fields.get("response_format")),
        ),
    )


def _read_shape(fields: Fields) -> dict[str, Any]:
    """Read the tools and the shape that the answer must have as arguments of a `ChatRequest`."""
    arguments = read_tool_choice(fields.get("tool_choice", "auto"), read_tools(fields))
    name = "response_format"
    if name in fields and asks_for_json(name, fields.take(name, dict, "an object")):
        force_json(arguments)
    return arguments
