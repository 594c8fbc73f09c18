"""The web app: `/{token}/v1/` with `chat/completions`, `responses`, `completions` and `models`.

One app serves all episodes of a process, whether called in process (`client`) or over HTTP (`server`). The token
names the episode and the agent, and cannot be guessed.
"""

from __future__ import annotations

import asyncio
import functools
import json
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from astune.context_tracker.tracker import ChatAnswer, ChatRequest
from astune.gateway.call import Call, Pieces, to_json
from astune.gateway.chat_completions import parse_chat_completion
from astune.gateway.completions import parse_completion
from astune.gateway.errors import ApiError, api_error, episode_over
from astune.gateway.responses import parse_response
from astune.gateway.responses_call import Memory

# OpenAI's clients repeat a failed request, unless told not to; a repeated call would be a second turn.
_ERROR_HEADERS = {"x-should-retry": "false"}

Choices = Callable[[ChatRequest, int], Coroutine[Any, Any, Sequence[ChatAnswer]]]
Parse = Callable[[object, Memory], Call]


@dataclass(frozen=True)
class Endpoint:
    """Where the calls of one agent of one episode go. `choices(request, n)` runs on `loop`; `from_elsewhere` calls it
    from another one, and cancelling that cancels it. `memory` holds the responses that later ones may continue."""

    model: str
    choices: Choices
    pieces: Pieces
    loop: asyncio.AbstractEventLoop
    memory: Memory = field(default_factory=Memory)

    async def from_elsewhere(self, request: ChatRequest, n: int) -> Sequence[ChatAnswer]:
        call = asyncio.run_coroutine_threadsafe(self.choices(request, n), self.loop)
        try:
            return await asyncio.wrap_future(call)
        except asyncio.CancelledError:
            if not call.cancelled():
                raise
            raise episode_over() from None


class OpenAIApp:
    """The app and the endpoints that it serves right now."""

    def __init__(self) -> None:
        self._endpoints: dict[str, Endpoint] = {}
        self.asgi = Starlette(
            routes=[
                self._route("chat/completions", lambda body, _: parse_chat_completion(body)),
                self._route("responses", parse_response),
                self._route("completions", lambda body, _: parse_completion(body)),
                Route("/{token}/v1/models", self._models, methods=["GET"]),
            ],
            exception_handlers={ApiError: _error_response, HTTPException: _http_error_response},
        )

    def add(self, endpoint: Endpoint) -> str:
        """Serve `endpoint`; returns its token."""
        token = secrets.token_urlsafe(24)
        self._endpoints[token] = endpoint
        return token

    def remove(self, token: str) -> None:
        """Stop serving: further calls with this token get a 404."""
        del self._endpoints[token]

    def _route(self, path: str, parse: Parse) -> Route:
        async def handle(scope: Scope, receive: Receive, send: Send) -> None:
            request = Request(scope, receive)
            try:
                response = await self._answer(request, parse)
            except ClientDisconnect:
                return
            except ApiError as error:
                response = _error_response(request, error)
            await response(scope, receive, send)

        return Route(f"/{{token}}/v1/{path}", _Asgi(handle), methods=["POST"])

    def _endpoint(self, request: Request) -> Endpoint:
        endpoint = self._endpoints.get(request.path_params["token"])
        if endpoint is None:
            raise episode_over()
        return endpoint

    async def _answer(self, request: Request, parse: Parse) -> Response:
        endpoint = self._endpoint(request)
        call = parse(_from_json(await request.body()), endpoint.memory)
        asked = call.request
        if request.headers.get("x-stainless-retry-count", "0") != "0":
            asked = replace(asked, retry=True)
        try:
            if asyncio.get_running_loop() is endpoint.loop:  # called in the process: there is no connection to watch
                answers = await endpoint.choices(asked, call.n)
            else:
                answers = await _unless_disconnected(request, endpoint.from_elsewhere(asked, call.n))
        except ClientDisconnect:
            raise
        except Exception as error:
            raise api_error(error, call.prompt_field) from error
        if call.stream:
            return Response("".join(call.events(answers, endpoint.pieces)), media_type="text/event-stream")
        return _json_response(call.body(answers, endpoint.pieces))

    async def _models(self, request: Request) -> Response:
        model = {"id": self._endpoint(request).model, "object": "model", "created": 0, "owned_by": "astune"}
        return _json_response({"object": "list", "data": [model]})


class _Asgi:
    """A callable that Starlette takes for an app of its own: functions it would wrap a second time."""

    def __init__(self, handle: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        self._handle = handle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._handle(scope, receive, send)


@functools.cache
def openai_app() -> OpenAIApp:
    """The app of this process."""
    return OpenAIApp()


async def _unless_disconnected(
    request: Request, answers: Coroutine[Any, Any, Sequence[ChatAnswer]]
) -> Sequence[ChatAnswer]:
    """The answers, unless the client goes away first: then the call is cancelled.

    Raises:
        ClientDisconnect: nobody waits for the answer any more.
        ApiError: the episode ended first.
    """
    work = asyncio.ensure_future(answers)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
        work.cancel()
    if work.cancelled():
        raise episode_over()
    if not work.done():
        raise ClientDisconnect
    return work.result()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _from_json(body: bytes) -> object:
    """Raises ApiError if `body` is not JSON, or holds text that UTF-8 cannot (half of a surrogate pair)."""
    try:
        value = json.loads(body)
        if b"\\u" in body:
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise ApiError(400, "invalid_json", f"the body is not JSON: {error}") from None
    return value


def _error_response(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return _json_response(error.body(), error.status, _ERROR_HEADERS)


def _http_error_response(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path.split('/', 2)[-1]}: {error.detail}"
    return _error_response(request, ApiError(error.status_code, "unknown_url", message))


def _json_response(body: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(to_json(body), status, headers, "application/json")
