"""A web app that speaks OpenAI's chat completions: `/{token}/v1/chat/completions` and `/{token}/v1/models`.

One app serves all episodes of a process, whether called in process (`openai_client`) or over HTTP
(`http_server`). The token names the episode and the agent, and cannot be guessed.
"""

from __future__ import annotations

import asyncio
import functools
import json
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from astune.context_tracker.tracker import ChatAnswer, ChatRequest
from astune.gateway.chat_completions import Call, Pieces, chunks, completion, parse_call
from astune.gateway.errors import ApiError, api_error, episode_over

# OpenAI's clients repeat a failed request, unless told not to; a repeated call would be a second turn.
_ERROR_HEADERS = {"x-should-retry": "false"}


@dataclass(frozen=True)
class Endpoint:
    """Where the calls of one agent of one episode go. `chat` runs on `loop`, whichever thread the call comes from."""

    model: str
    chat: Callable[[ChatRequest], Awaitable[ChatAnswer]]
    pieces: Pieces
    loop: asyncio.AbstractEventLoop

    async def answer(self, request: ChatRequest) -> ChatAnswer:
        if asyncio.get_running_loop() is self.loop:
            return await self.chat(request)
        call = asyncio.run_coroutine_threadsafe(_awaited(self.chat(request)), self.loop)
        try:
            return await asyncio.wrap_future(call)
        except asyncio.CancelledError:
            if not call.cancelled():
                raise
            raise episode_over() from None


async def _awaited(answer: Awaitable[ChatAnswer]) -> ChatAnswer:
    return await answer


class OpenAIApp:
    """The app and the endpoints that it serves right now."""

    def __init__(self) -> None:
        self._endpoints: dict[str, Endpoint] = {}
        self.asgi = Starlette(
            routes=[
                Route("/{token}/v1/chat/completions", self._chat_completions, methods=["POST"]),
                Route("/{token}/v1/models", self._models, methods=["GET"]),
            ],
            exception_handlers={ApiError: _error_response},
        )

    def add(self, endpoint: Endpoint) -> str:
        """Serve `endpoint`; returns its token."""
        token = secrets.token_urlsafe(24)
        self._endpoints[token] = endpoint
        return token

    def remove(self, token: str) -> None:
        """Stop serving: further calls with this token get a 404."""
        del self._endpoints[token]

    def _endpoint(self, request: Request) -> Endpoint:
        endpoint = self._endpoints.get(request.path_params["token"])
        if endpoint is None:
            raise episode_over()
        return endpoint

    async def _chat_completions(self, request: Request) -> Response:
        endpoint = self._endpoint(request)
        try:
            body = await request.json()
        except ValueError as error:
            raise ApiError(400, "invalid_json", f"the body is not JSON: {error}") from None
        call = parse_call(body)
        try:
            answer = await endpoint.answer(call.request)
        except Exception as error:
            raise api_error(error) from error
        return _answer_response(answer, call, endpoint)

    async def _models(self, request: Request) -> Response:
        model = {"id": self._endpoint(request).model, "object": "model", "created": 0, "owned_by": "astune"}
        return _json_response({"object": "list", "data": [model]})


@functools.cache
def openai_app() -> OpenAIApp:
    """The app of this process."""
    return OpenAIApp()


def _answer_response(answer: ChatAnswer, call: Call, endpoint: Endpoint) -> Response:
    if not call.stream:
        return _json_response(completion(answer, call, endpoint.pieces))
    events = [f"data: {_json(chunk)}\n\n" for chunk in chunks(answer, call, endpoint.pieces)]
    return Response("".join([*events, "data: [DONE]\n\n"]), media_type="text/event-stream")


async def _error_response(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return _json_response(error.body(), error.status, _ERROR_HEADERS)


def _json(body: dict[str, Any]) -> str:
    return json.dumps(body, separators=(",", ":"))


def _json_response(body: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(_json(body), status, headers, "application/json")
