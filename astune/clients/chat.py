"""Chat APIs of other models, through the openai package: retries are the library's."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import anyio
import openai
from openai.types import CompletionUsage
from openai.types.chat import ChatCompletion

from astune.clients.openai_http import http_library
from astune.config.chat_models import ChatModelConfig
from astune.errors import ConfigError, PolicyError, RolloutError, WorkflowError
from astune.types import FinishReason


@dataclass(frozen=True)
class TokenUsage:
    """Tokens of one call, as the API counts them."""

    prompt_tokens: int
    completion_tokens: int
    cached_prompt_tokens: int = 0
    """Those of the prompt that the API had in its own cache."""


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


class _Timed(openai.DefaultAsyncHttpxClient):
    """Its timeout is one of the whole attempt, from the connection to the last byte of the reply. That of the library
    is of each wait for the next byte: a server that drips is never done."""

    async def send(self, request: Any, **options: Any) -> Any:
        try:
            with anyio.fail_after(request.extensions["timeout"]["read"]):
                return await super().send(request, **options)
        except TimeoutError as error:
            raise http_library().ReadTimeout("", request=request) from error


class ChatClient:
    """One OpenAI-compatible chat API. `key` is the key of the configuration that describes it: what errors name.

        config = AuxiliaryModelConfig(base_url="http://127.0.0.1:8000/v1", model="Qwen3-8B")
        client = ChatClient("gpt", config, key="astune.rollout.auxiliary_models.gpt")
        (await client.complete({"messages": [{"role": "user", "content": "Hi"}]})).message["content"]

    Connections are not kept, so a client may be used on one event loop after another. Raises ConfigError if the
    environment variable of the key is not set.
    """

    def __init__(self, name: str, config: ChatModelConfig, *, key: str) -> None:
        self.name = name
        self.config = config
        self.warned = False
        """Whether the user was told that turns of this model are not exact."""
        self._key = key
        self._client = openai.AsyncOpenAI(
            api_key=self._api_key(),
            base_url=config.base_url,
            timeout=config.timeout,
            max_retries=config.max_retries,
            http_client=_Timed(),
            default_headers={"Connection": "close"},
        )

    def _api_key(self) -> str:
        variable = self.config.api_key_env
        if variable is None:
            return "none"
        key = os.environ.get(variable)
        if not key:
            raise ConfigError(f"{self._key}.api_key_env: the environment variable {variable} is not set")
        return key

    async def models(self, timeout: float) -> list[str] | None:
        """The names of the models that the API lists, in one attempt of `timeout` seconds; None if it has no list.

        Raises PolicyError as `complete` does.
        """
        once = self._client.with_options(timeout=timeout, max_retries=0)
        try:
            return [model.id async for model in once.models.list()]
        except openai.NotFoundError:
            return None
        except openai.OpenAIError as error:
            raise self._explained(error, timeout, retries=0) from error

    async def complete(self, body: Mapping[str, Any]) -> ChatReply:
        """The answer to a request in OpenAI's shape; the model's name is filled in.

        Raises:
            PolicyError: the API cannot be reached, refuses the key, or fails.
            WorkflowError: the API does not accept the request.
        """
        try:
            completion: object = await self._client.chat.completions.create(
                model=self.config.model, messages=body["messages"], extra_body=dict(body)
            )
        except openai.OpenAIError as error:
            raise self._explained(error, self.config.timeout, self.config.max_retries) from error
        if not isinstance(completion, ChatCompletion) or not completion.choices:
            raise PolicyError(
                f"{self._key}: {self.config.base_url} answered with something that is no chat completion; "
                "does base_url end as the API's documentation says, usually in /v1?"
            )
        return _reply(completion)

    def _explained(self, error: openai.OpenAIError, timeout: float, retries: int) -> RolloutError:
        config = self.config
        attempts = f"{retries + 1} attempt{'s' if retries else ''}"
        if isinstance(error, openai.APITimeoutError):
            return PolicyError(f"{self._key}: no answer within {timeout:g} s ({attempts}; see timeout)")
        if isinstance(error, openai.APIConnectionError):
            cause = error.__cause__ or error
            return PolicyError(
                f"{self._key}: cannot reach {config.base_url} ({str(cause) or type(cause).__name__}; {attempts}). "
                "Is the server running, and base_url right?"
            )
        if isinstance(error, openai.AuthenticationError | openai.PermissionDeniedError):
            variable = config.api_key_env
            key = f"the API key in {variable}" if variable else "a call without an API key: set api_key_env"
            return PolicyError(f"{self._key}: {config.base_url} refused {key} ({_said(error)})")
        if isinstance(error, openai.NotFoundError):
            return PolicyError(
                f"{self._key}: {config.base_url} has no model {config.model!r}, or no such path: {error}"
            )
        if isinstance(error, openai.BadRequestError | openai.UnprocessableEntityError):
            return WorkflowError(f"{self._key}: {config.model} did not accept the request ({_said(error)})")
        return PolicyError(f"{self._key}: {config.base_url} failed ({attempts}): {error}")


def _said(error: openai.APIStatusError) -> str:
    return f"{error.status_code}: {error.message}"


def _reply(completion: ChatCompletion) -> ChatReply:
    choice = completion.choices[0]
    # `prompt_token_ids` and `token_ids` are vLLM's names; what OpenAI's types do not know stands in `model_extra`
    prompt_ids = (completion.model_extra or {}).get("prompt_token_ids")
    output_ids = (choice.model_extra or {}).get("token_ids")
    logprobs = choice.logprobs.content if choice.logprobs is not None else None
    return ChatReply(
        message=_message(choice.message.model_dump(exclude_none=True)),
        finish_reason="length" if choice.finish_reason == "length" else "stop",
        prompt_ids=None if prompt_ids is None else tuple(prompt_ids),
        output_ids=None if output_ids is None else tuple(output_ids),
        logprobs=None if logprobs is None else _finite((entry.token, entry.logprob) for entry in logprobs),
        usage=_usage(completion.usage),
    )


def _finite(entries: Iterable[tuple[str, object]]) -> tuple[tuple[str, float], ...]:
    """Without those that are no finite number: the rest then does not fit the tokens, and none is used."""
    return tuple((token, value) for token, value in entries if isinstance(value, (int, float)) and math.isfinite(value))


def _usage(given: CompletionUsage | None) -> TokenUsage | None:
    """The openai library does not check what it reads: an API may leave out either count."""
    counts: tuple[object, object] = (given.prompt_tokens, given.completion_tokens) if given else (None, None)
    prompt_tokens, completion_tokens = counts
    if given is None or not isinstance(prompt_tokens, int) or not isinstance(completion_tokens, int):
        return None
    details = given.prompt_tokens_details
    return TokenUsage(prompt_tokens, completion_tokens, (details.cached_tokens if details else None) or 0)


def _message(given: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of a message that agents read. Reasoning goes by two names."""
    message = {"role": "assistant", "content": given.get("content") or given.get("refusal")}
    reasoning = given.get("reasoning_content") or given.get("reasoning")
    if isinstance(reasoning, str):
        message["reasoning_content"] = reasoning
    if given.get("tool_calls"):
        message["tool_calls"] = given["tool_calls"]
    return message
