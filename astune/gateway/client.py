"""A real `AsyncOpenAI` client whose calls stay in the process: chat completions go straight to the endpoint, everything
else runs `openai_app` without a socket."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Coroutine, Iterable, Mapping
from operator import ne
from typing import Any

import openai
from openai.resources.chat.completions import AsyncCompletions
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel, ValidationError

from astune.clients.api import http_library
from astune.gateway.app import OpenAIApp
from astune.gateway.http import NO_RETRY, error_body
from astune.support.http.service import MOST_NESTED, HttpError

_ORIGIN = "http://in-process"
_MOST_BITS = 64
"""The bits of an integer. Readers of JSON take some of the larger ones and refuse others."""


def in_process_client(app: OpenAIApp, token: str) -> openai.AsyncOpenAI:
    """A client for the endpoint that `app` serves under `token`. It never retries, and may be closed.

    Its timeouts do nothing, as nothing travels: the episode's own timeout ends a call that takes too long.
    """
    http = http_library()
    client = openai.AsyncOpenAI(
        api_key="in-process",
        base_url=f"{_ORIGIN}/{token}/v1",
        max_retries=0,
        timeout=None,
        http_client=http.AsyncClient(transport=http.ASGITransport(app=app.asgi), trust_env=False),
    )
    client.chat.__dict__["completions"] = _Completions(client, app, token)  # a cached property, filled in
    client._platform = _platform()  # else every client asks for it in a thread, and calls arrive in no fixed order
    return client


Wait = Callable[[Coroutine[Any, Any, Any]], Any]
"""Blocks until the coroutine, which runs on the episode's event loop, is done, and returns its result. Raises where it
would block that loop itself, and when the episode ends."""


def blocking_client(app: OpenAIApp, token: str, wait: Wait) -> openai.OpenAI:
    """An `OpenAI` client for the same endpoint, for a thread beside the event loop. Everything runs `app` on the loop,
    through `wait`. It never retries, and its timeouts do nothing."""
    http = http_library()
    inner = http.ASGITransport(app=app.asgi)

    async def answer(request: Any) -> Any:
        response = await inner.handle_async_request(request)
        return http.Response(response.status_code, headers=response.headers, content=await response.aread())

    async def nothing() -> None: ...

    class Transport(http.BaseTransport):  # type: ignore[name-defined, misc]
        def handle_request(self, request: Any) -> Any:
            return wait(answer(request))

    class Blocking(openai.OpenAI):
        def request(self, *given: Any, **named: Any) -> Any:
            wait(nothing())  # what it raises, the client would show as a broken connection
            return super().request(*given, **named)

    return Blocking(
        api_key="in-process",
        base_url=f"{_ORIGIN}/{token}/v1",
        max_retries=0,
        timeout=None,
        http_client=http.Client(transport=Transport(), trust_env=False),
    )


class _Completions(AsyncCompletions):
    """`create` without HTTP, JSON, and the client's walk over the types of all messages: together they cost more than
    all else of a call. The result is the same.

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
            body=_dump(body) | {"stream": streamed},
            options={
                "headers": dict(extra_headers or {}),
                "params": dict(extra_query or {}),
                "extra_json": dict(extra_body or {}),
            },
            stream=streamed,
            stream_cls=openai.AsyncStream[ChatCompletionChunk],
        )

    def _plain(self, body: dict[str, Any]) -> dict[str, Any]:
        """Copy `body` as JSON would give it back. Messages and tools that the request before had already are shared
        with its copy. Raises ValueError as `_copy` does."""
        plain: dict[str, Any] = _copy(
            {name: () if name in _REPEATED else value for name, value in body.items()}, MOST_NESTED
        )
        for name in body.keys() & _REPEATED:
            plain[name] = self._last[name] = _copy_after(self._last.get(name, ()), body[name])
        return plain

    async def _straight(self, body: object) -> ChatCompletion:
        try:
            answer = await self._app.chat_completion(self._token, body)
            try:
                return ChatCompletion.model_validate(answer)
            except ValidationError:  # as over HTTP, where the client takes a log-probability that is null
                return ChatCompletion.construct(**answer)
        except HttpError as error:
            http = http_library()
            sent = http.Request("POST", f"{self._client.base_url}chat/completions")
            answer = http.Response(error.status, headers=NO_RETRY, json=error_body(error), request=sent)
            raise self._client._make_status_error_from_response(answer) from None


_NOT_GIVEN = (openai.NotGiven, openai.Omit)


def _dump(value: Any) -> Any:
    """Turn the client's own objects in `value`, such as an earlier answer or its tool calls, into dictionaries, which
    the client accepts."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_unset=True)
    if isinstance(value, Mapping):
        return {name: _dump(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_dump(item) for item in value]
    return value


_REPEATED = frozenset(("messages", "tools"))
"""The fields that repeat the request before: only the new items in them are copied."""


def _copy_after(last: Any, value: Any) -> Any:
    """Copy a value of a body. If it is a list that begins like `last`, an earlier copy, that beginning is taken from
    there."""
    if type(value) is not list or type(last) is not list:
        return _copy(value, MOST_NESTED - 1)
    known = next((place for place, new in enumerate(map(ne, last, value)) if new), min(len(last), len(value)))
    return last[:known] + _copy(value[known:], MOST_NESTED - 1)


def _copy(value: Any, deepest: int) -> Any:
    """Copy `value` as JSON would give it back. Raises ValueError if JSON would change it or cannot hold it."""
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
        return {name: _copy(item, deepest - 1) for name, item in value.items()}
    if deepest and (kind is list or kind is tuple):
        return [_copy(item, deepest - 1) for item in value]
    if isinstance(value, BaseModel):
        return _copy(_dump(value), deepest)
    raise ValueError(f"{kind.__name__} is not what JSON gives back")


@functools.cache
def _platform() -> Any:
    return openai._base_client.get_platform()
