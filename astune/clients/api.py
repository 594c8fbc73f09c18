"""Calls to OpenAI-compatible APIs, through the openai package: retries are the library's."""

from __future__ import annotations

import functools
import os
from importlib import import_module, metadata
from typing import Any, Generic, TypeVar

import anyio
import openai

from astune.config.chat_models import ApiConfig
from astune.errors import ConfigError, PolicyError, RolloutError, WorkflowError


@functools.cache
def http_library() -> Any:
    """The HTTP library that the installed openai package is built on: httpx2 since 3.0, httpx before."""
    return import_module("httpx2" if int(metadata.version("openai").split(".")[0]) >= 3 else "httpx")


C = TypeVar("C", bound=ApiConfig)


class _Timed(openai.DefaultAsyncHttpxClient):
    """A client whose timeout holds for the whole attempt, from the connection to the last byte of the reply. The
    library's own timeout is for each wait for the next byte, so a server that drips would never be done."""

    async def send(self, request: Any, **options: Any) -> Any:
        try:
            with anyio.fail_after(request.extensions["timeout"]["read"]):
                return await super().send(request, **options)
        except TimeoutError as error:
            raise http_library().ReadTimeout("", request=request) from error


class ApiClient(Generic[C]):
    """One OpenAI-compatible API. `key` is the key of the configuration that describes it, which errors name.

    Connections are not kept, so a client may be used on one event loop after another. Raises ConfigError if the
    environment variable of the key is not set.
    """

    def __init__(self, name: str, config: C, *, key: str) -> None:
        self.name = name
        self.config = config
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
            raise self._explain(error, timeout, retries=0) from error

    def _explain(self, error: openai.OpenAIError, timeout: float, retries: int) -> RolloutError:
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
            return PolicyError(f"{self._key}: {config.base_url} refused {key} ({_read_reason(error)})")
        if isinstance(error, openai.NotFoundError):
            return PolicyError(
                f"{self._key}: {config.base_url} has no model {config.model!r}, or no such path: {error}"
            )
        if isinstance(error, openai.BadRequestError | openai.UnprocessableEntityError):
            return WorkflowError(f"{self._key}: {config.model} did not accept the request ({_read_reason(error)})")
        return PolicyError(f"{self._key}: {config.base_url} failed ({attempts}): {error}")


def _read_reason(error: openai.APIStatusError) -> str:
    return f"{error.status_code}: {error.message}"
