"""A real `AsyncOpenAI` client whose calls run `openai_app` in the process, without a socket."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any

import openai
from openai.resources.chat.completions import AsyncCompletions
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel

from astune.clients.openai_http import http_library
from astune.gateway.app import OpenAIApp

_ORIGIN = "http://in-process"


def in_process_http_client(app: OpenAIApp) -> Any:
    """An `httpx.AsyncClient` (`httpx2` for openai 3.x) that hands every request to `app`."""
    http = http_library()
    return http.AsyncClient(transport=http.ASGITransport(app=app.asgi), trust_env=False)


def in_process_client(app: OpenAIApp, token: str) -> openai.AsyncOpenAI:
    """A client for the endpoint that `app` serves under `token`. It never retries, and may be closed.

    Its timeouts do nothing, as nothing travels: the episode's own timeout ends a call that takes too long.
    """
    client = openai.AsyncOpenAI(
        api_key="in-process",
        base_url=f"{_ORIGIN}/{token}/v1",
        max_retries=0,
        timeout=None,
        http_client=in_process_http_client(app),
    )
    client.chat.__dict__["completions"] = _Completions(client)  # a cached property, filled in
    client._platform = _platform()  # else every client asks for it in a thread, and calls arrive in no fixed order
    return client


class _Completions(AsyncCompletions):
    """`create` without the client's walk over the types of all messages, which costs more than everything else
    about a call and grows with the conversation. The request that is sent is the same."""

    async def create(  # type: ignore[override]
        self,
        *,
        messages: Iterable[object],
        stream: bool | None = False,
        extra_headers: Mapping[str, str] | None = None,
        extra_query: Mapping[str, object] | None = None,
        extra_body: Mapping[str, object] | None = None,
        timeout: Any = None,
        **fields: Any,
    ) -> Any:
        body = {name: value for name, value in fields.items() if not isinstance(value, _NOT_GIVEN)}
        body["messages"] = [_plain(message) for message in messages]
        streamed = stream is True
        return await self._client.post(
            "/chat/completions",
            cast_to=ChatCompletion,
            body=body | {"stream": streamed},
            options={
                "headers": dict(extra_headers or {}),
                "params": dict(extra_query or {}),
                "extra_json": dict(extra_body or {}),
            },
            stream=streamed,
            stream_cls=openai.AsyncStream[ChatCompletionChunk],
        )


_NOT_GIVEN = (openai.NotGiven, openai.Omit)


def _plain(value: Any) -> Any:
    """`value` with the client's own objects, such as an earlier answer or its tool calls, as dictionaries."""
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_unset=True)
    return value


@functools.cache
def _platform() -> Any:
    return openai._base_client.get_platform()
