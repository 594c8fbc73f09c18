"""A real `AsyncOpenAI` client whose calls stay in the process: chat completions go straight to the endpoint, everything
else runs `openai_app` without a socket."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from operator import ne
from typing import Any

import openai
from openai.resources.chat.completions import AsyncCompletions
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel

from astune.clients.openai_http import http_library
from astune.gateway.app import OpenAIApp
from astune.gateway.body import MOST_NESTED
from astune.gateway.errors import ApiError
from astune.gateway.http import NO_RETRY

_ORIGIN = "http://in-process"
_MOST_BITS = 64
"""Of an integer; of larger ones readers of JSON take some and not others."""


def _http_client(app: OpenAIApp) -> Any:
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
        http_client=_http_client(app),
    )
    client.chat.__dict__["completions"] = _Completions(client, app, token)  # a cached property, filled in
    client._platform = _platform()  # else every client asks for it in a thread, and calls arrive in no fixed order
    return client


class _Completions(AsyncCompletions):
    """`create` without a request, its JSON and its answer's, and without the client's walk over the types of all
    messages: together they cost more than everything else about a call. What comes of it is the same.

    Streams go over HTTP, and what is to be sent with headers of its own, or is no plain JSON: there the errors are.
    """

    def __init__(self, client: openai.AsyncOpenAI, app: OpenAIApp, token: str) -> None:
        super().__init__(client)
        self._app, self._token = app, token
        self._last: dict[str, Any] = {}

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
        body["messages"] = list(messages)
        streamed = stream is True
        if not (streamed or extra_headers or extra_query) and self._app.runs_here(self._token):
            try:
                plain = self._plain(body | dict(extra_body or {}))
            except ValueError:
                pass
            else:
                return await self._straight(plain)
        return await self._client.post(
            "/chat/completions",
            cast_to=ChatCompletion,
            body=_dumped(body) | {"stream": streamed},
            options={
                "headers": dict(extra_headers or {}),
                "params": dict(extra_query or {}),
                "extra_json": dict(extra_body or {}),
            },
            stream=streamed,
            stream_cls=openai.AsyncStream[ChatCompletionChunk],
        )

    def _plain(self, body: dict[str, Any]) -> dict[str, Any]:
        """`body` as it would come out of JSON: its own copy but for messages and tools that are those of the request
        before. Raises ValueError as `_copied` does."""
        plain: dict[str, Any] = _copied(
            {name: () if name in _REPEATED else value for name, value in body.items()}, MOST_NESTED
        )
        for name in body.keys() & _REPEATED:
            plain[name] = self._last[name] = _copied_after(self._last.get(name, ()), body[name])
        return plain

    async def _straight(self, body: object) -> ChatCompletion:
        try:
            return ChatCompletion.model_validate(await self._app.chat_completion(self._token, body))
        except ApiError as error:
            http = http_library()
            sent = http.Request("POST", f"{self._client.base_url}chat/completions")
            answer = http.Response(error.status, headers=NO_RETRY, json=error.body(), request=sent)
            raise self._client._make_status_error_from_response(answer) from None


_NOT_GIVEN = (openai.NotGiven, openai.Omit)


def _dumped(value: Any) -> Any:
    """`value` with the client's own objects, such as an earlier answer or its tool calls, as dictionaries: the client
    takes them so."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_unset=True)
    if isinstance(value, Mapping):
        return {name: _dumped(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_dumped(item) for item in value]
    return value


_REPEATED = frozenset(("messages", "tools"))
"""What a request repeats of the one before, so that only what is new in it is copied."""


def _copied_after(last: Any, value: Any) -> Any:
    """`_copied` of a value in a body. What a list and `last`, a copy from before, begin with alike is taken over."""
    if type(value) is not list or type(last) is not list:
        return _copied(value, MOST_NESTED - 1)
    known = next((place for place, new in enumerate(map(ne, last, value)) if new), min(len(last), len(value)))
    return last[:known] + _copied(value[known:], MOST_NESTED - 1)


def _copied(value: Any, deepest: int) -> Any:
    """`value` as it would come out of JSON. Raises ValueError where it would come out as something else, or not at
    all."""
    kind = type(value)
    if kind is str:
        if not value.isascii():
            value.encode()  # half of a surrogate pair raises
        return value
    if value is None or kind is bool or (kind is float and math.isfinite(value)):
        return value
    if kind is int and value.bit_length() < _MOST_BITS:
        return value
    if deepest and kind is dict and all(type(name) is str for name in value):
        return {name: _copied(item, deepest - 1) for name, item in value.items()}
    if deepest and (kind is list or kind is tuple):
        return [_copied(item, deepest - 1) for item in value]
    if isinstance(value, BaseModel):
        return _copied(_dumped(value), deepest)
    raise ValueError(f"{kind.__name__} is not what JSON gives back")


@functools.cache
def _platform() -> Any:
    return openai._base_client.get_platform()
