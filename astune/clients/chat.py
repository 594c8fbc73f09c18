"""Chat APIs of other models."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import openai
from openai.types import CompletionUsage
from openai.types.chat import ChatCompletion

from astune.clients.api import ApiClient
from astune.config.chat_models import ChatModelConfig
from astune.errors import PolicyError
from astune.types import FinishReason

BROKEN = (AttributeError, LookupError, TypeError, ValueError, RecursionError)
"""What a reply of another shape raises: the openai package takes whatever came for a completion."""


@dataclass(frozen=True)
class TokenUsage:
    """Tokens of one call, as the API counts them."""

    prompt_tokens: int
    completion_tokens: int
    cached_prompt_tokens: int = 0
    """The tokens of the prompt that the API had in its own cache."""


@dataclass(frozen=True)
class ChatReply:
    """One answer. The token ids are None where the API gives none, as almost all of them."""

    message: dict[str, Any]
    """OpenAI's assistant message: `content`, and where there are any `reasoning_content` and `tool_calls`."""
    finish_reason: FinishReason
    prompt_ids: tuple[int, ...] | None
    output_ids: tuple[int, ...] | None
    logprobs: tuple[tuple[str, float], ...] | None
    """Text and log-probability of every sampled token."""
    usage: TokenUsage | None = None
    """None where the API does not report it."""


class ChatClient(ApiClient[ChatModelConfig]):
    """One OpenAI-compatible chat API.

        config = AuxiliaryModelConfig(base_url="http://127.0.0.1:8000/v1", model="Qwen3-8B")
        client = ChatClient("gpt", config, key="astune.rollout.auxiliary_models.gpt")
        (await client.complete({"messages": [{"role": "user", "content": "Hi"}]})).message["content"]

    Raises ConfigError as `ApiClient` does.
    """

    async def complete(self, body: Mapping[str, Any]) -> ChatReply:
        """The answer to a request in OpenAI's shape; the model's name is filled in.

        Raises:
            PolicyError: the API cannot be reached, refuses the key, or fails.
            WorkflowError: the API does not accept the request.
        """
        try:
            completion = await self._client.chat.completions.create(
                model=self.config.model, messages=body["messages"], extra_body=dict(body)
            )
            return _reply(completion)
        except openai.OpenAIError as error:
            raise self._explain(error, self.config.timeout, self.config.max_retries) from error
        except BROKEN as error:
            raise PolicyError(
                f"{self._key}: {self.config.base_url} answered with something that is no chat completion; "
                "does base_url end as the API's documentation says, usually in /v1?"
            ) from error


def _reply(completion: ChatCompletion) -> ChatReply:
    choice = completion.choices[0]
    # `prompt_token_ids` and `token_ids` are vLLM's names; what OpenAI's types do not know stands in `model_extra`
    prompt_ids = (completion.model_extra or {}).get("prompt_token_ids")
    output_ids = (choice.model_extra or {}).get("token_ids")
    logprobs = choice.logprobs.content if choice.logprobs is not None else None
    given = choice.message.model_dump(exclude_none=True, warnings=False)
    message = {"role": "assistant", "content": given.get("content") or given.get("refusal")}
    if not isinstance(message["content"], str | None) or not isinstance(given.get("tool_calls"), list | None):
        raise TypeError("content is a text, and tool_calls a list")
    reasoning = given.get("reasoning_content") or given.get("reasoning")
    if isinstance(reasoning, str):
        message["reasoning_content"] = reasoning
    if given.get("tool_calls"):
        message["tool_calls"] = given["tool_calls"]
    return ChatReply(
        message=message,
        finish_reason="length" if choice.finish_reason == "length" else "stop",
        prompt_ids=None if prompt_ids is None else tuple(prompt_ids),
        output_ids=None if output_ids is None else tuple(output_ids),
        logprobs=None if logprobs is None else _finite((entry.token, entry.logprob) for entry in logprobs),
        usage=_usage(completion.usage),
    )


def _finite(entries: Iterable[tuple[str, object]]) -> tuple[tuple[str, float], ...]:
    """Leave out log-probabilities that are no finite number. The rest then does not fit the tokens, and none is
    used."""
    return tuple((token, value) for token, value in entries if isinstance(value, (int, float)) and math.isfinite(value))


def _usage(given: CompletionUsage | None) -> TokenUsage | None:
    """Read the usage. The openai library does not check it: an API may leave out either count."""
    counts: tuple[object, object] = (given.prompt_tokens, given.completion_tokens) if given else (None, None)
    prompt_tokens, completion_tokens = counts
    if given is None or not isinstance(prompt_tokens, int) or not isinstance(completion_tokens, int):
        return None
    details = given.prompt_tokens_details
    return TokenUsage(prompt_tokens, completion_tokens, (details.cached_tokens if details else None) or 0)
