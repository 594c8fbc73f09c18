"""The web app: `/{token}/v1/` with `chat/completions`, `responses`, `completions` and `models`.

One app serves all episodes of a process, whether called in process (`client`) or over HTTP (`server`). The token
names the episode and the agent, and cannot be guessed; nothing is answered without it. So neither a page of a browser
nor a foreign name for this machine (DNS rebinding) gets anywhere, and neither Host nor Origin is looked at: an agent
may reach the server by any name, and may be a page itself.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import secrets
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.context_tracker.tracker import ChatAnswer, ChatRequest
from astune.errors import ContextOverflow
from astune.gateway.api_request import ApiRequest
from astune.gateway.body import from_json, read_body
from astune.gateway.chat_completions import parse_chat_completion
from astune.gateway.completions import parse_completion
from astune.gateway.errors import ApiError, api_error, episode_over
from astune.gateway.http import api_route, json_response, model_object, unknown_url, unless_disconnected
from astune.gateway.responses import parse_response
from astune.gateway.responses_request import StoredResponses

Choices = Callable[[ChatRequest, int], Coroutine[Any, Any, Sequence[ChatAnswer]]]
Parse = Callable[[object, StoredResponses], ApiRequest]


@dataclass(frozen=True)
class Endpoint:
    """The entry of one agent of one episode. `choices(request, n)` runs on `loop`; `from_elsewhere` calls it from
    another loop, and cancelling that cancels it. `failed` is told of calls that do not come so far, `note` of what
    requests ask for and do not get. `stored` holds the responses that later ones may continue."""

    model: str
    choices: Choices
    chat_format: ChatFormat
    loop: asyncio.AbstractEventLoop
    context_length: int
    failed: Callable[[Exception], None]
    note: Callable[[str], None]
    stored: StoredResponses = field(default_factory=StoredResponses)

    def from_elsewhere(self, request: ChatRequest, n: int) -> asyncio.Future[Sequence[ChatAnswer]]:
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self.choices(request, n), self.loop))


class OpenAIApp:
    """The app and the endpoints that it serves right now."""

    def __init__(self) -> None:
        self._endpoints: dict[str, Endpoint] = {}
        self.asgi = Starlette(
            routes=[
                self._route("chat/completions", lambda body, _: parse_chat_completion(body)),
                self._route("responses", parse_response),
                self._route("completions", lambda body, _: parse_completion(body)),
                api_route("/{token}/v1/models", self._models, ("GET",)),
                api_route("/{token}/v1/models/{model:path}", self._model, ("GET",)),
            ],
            exception_handlers={HTTPException: unknown_url},
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
        return api_route(f"/{{token}}/v1/{path}", functools.partial(self._answer, parse=parse))

    def _endpoint(self, request: Request) -> Endpoint:
        endpoint = self._endpoints.get(request.path_params["token"])
        if endpoint is None:
            raise episode_over()
        return endpoint

    async def _answer(self, request: Request, *, parse: Parse) -> Response:
        endpoint = self._endpoint(request)
        try:
            body = await read_body(request, endpoint.context_length)
        except ContextOverflow as error:
            endpoint.failed(error)
            raise api_error(error, None) from None
        parsed = parse(from_json(body), endpoint.stored)
        for note in parsed.notes:
            endpoint.note(note)
        asked = parsed.request
        # OpenAI's clients count here how often they have sent this request before.
        if request.headers.get("x-stainless-retry-count", "0") != "0":
            asked = replace(asked, retry=True)
        try:
            if asyncio.get_running_loop() is endpoint.loop:  # called in the process: there is no connection to watch
                answers = await endpoint.choices(asked, parsed.n)
            else:
                answers = await unless_disconnected(request, endpoint.from_elsewhere(asked, parsed.n), episode_over())
        except ClientDisconnect:
            raise
        except Exception as error:
            raise api_error(error, parsed.prompt_field) from error
        answers = [replace(answer, answer_id=_unique(answer.answer_id, request)) for answer in answers]
        if parsed.stream:
            return Response("".join(parsed.events(answers, endpoint.chat_format)), media_type="text/event-stream")
        return json_response(parsed.body(answers, endpoint.chat_format))

    async def _models(self, request: Request) -> Response:
        return json_response({"object": "list", "data": [model_object(self._endpoint(request).model)]})

    async def _model(self, request: Request) -> Response:
        endpoint, asked = self._endpoint(request), request.path_params["model"]
        if asked != endpoint.model:
            message = f"The model {asked!r:.200} does not exist: there is {endpoint.model!r}."
            raise ApiError(404, "model_not_found", message, "model")
        return json_response(model_object(endpoint.model))


@functools.cache
def openai_app() -> OpenAIApp:
    """The app of this process."""
    return OpenAIApp()


def _unique(answer_id: str, request: Request) -> str:
    """The id of an answer, of no other answer of any episode: the number in its episode behind a hash of the token,
    which stays secret."""
    token = hashlib.blake2b(request.path_params["token"].encode(), digest_size=8).hexdigest()
    return f"{token}_{answer_id.rpartition('_')[2]}"
