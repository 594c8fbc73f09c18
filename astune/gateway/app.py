"""The web app: `/{token}/v1/` with `chat/completions`, `responses`, `completions` and `models`, and Anthropic's
`messages`.

One app serves all episodes of a process, whether called in process (`client`) or over HTTP (`server`). The token
names the episode and the agent, and cannot be guessed; nothing is answered without it.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.context_tracker.tracker import ChatAnswer, ChatRequest
from astune.errors import ContextOverflow
from astune.gateway.anthropic_request import parse_count, parse_messages
from astune.gateway.api_request import ApiRequest, write_answers
from astune.gateway.blocked_loop import unless_blocked
from astune.gateway.chat_completions import parse_chat_completion
from astune.gateway.completions import parse_completion
from astune.gateway.http import (
    answer_anthropic_error,
    answer_error,
    call_error,
    episode_over,
    is_repeated,
    list_models,
    read_request,
    show_model,
    to_http_error,
    unknown_url,
)
from astune.gateway.responses import parse_response
from astune.gateway.responses_request import StoredResponses
from astune.gateway.tool_endpoint import ToolEndpoint
from astune.support.http.service import HttpError, answer_route, json_response, parse_json, unless_disconnected

Result = TypeVar("Result")
Choices = Callable[[ChatRequest, int], Coroutine[Any, Any, Sequence[ChatAnswer]]]
Count = Callable[[ChatRequest], Coroutine[Any, Any, int]]
Parse = Callable[[object, StoredResponses], ApiRequest]
MESSAGES_PATHS = ("messages", "v1/messages")
"""Clients of Anthropic put a `v1` of their own after the URL that they are given."""


@dataclass(frozen=True)
class Endpoint:
    """The entry of one agent of one episode. `choices(request, n)`, and `count(request)`, the tokens of its prompt, run
    on `loop`, in `thread`; `from_elsewhere` has one of them run from another loop, and cancelling that cancels it.
    `failed` is told of calls that do not come so far, `note` of what requests ask for and do not get. `stored` holds
    the responses that later ones may continue."""

    model: str
    choices: Choices
    count: Count
    chat_format: ChatFormat
    loop: asyncio.AbstractEventLoop
    thread: int
    episode_id: str
    context_length: int
    failed: Callable[[Exception], None]
    note: Callable[[str], None]
    stored: StoredResponses = field(default_factory=StoredResponses)

    def from_elsewhere(self, call: Coroutine[Any, Any, Result]) -> asyncio.Future[Result]:
        work = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, self.loop))
        return asyncio.ensure_future(unless_blocked(work, self.loop, self.thread, self.episode_id))


class OpenAIApp:
    """The app and the endpoints that it serves right now."""

    def __init__(self) -> None:
        self._endpoints: dict[str, Endpoint] = {}
        self._tools: dict[str, ToolEndpoint] = {}
        self.asgi = Starlette(
            routes=[
                self._route("chat/completions", lambda body, _: parse_chat_completion(body)),
                self._route("responses", parse_response),
                self._route("completions", lambda body, _: parse_completion(body)),
                *(
                    self._route(path, lambda body, _: parse_messages(body), answer_anthropic_error)
                    for path in MESSAGES_PATHS
                ),
                *(
                    answer_route(f"/{{token}}/v1/{path}/count_tokens", self._count, answer_anthropic_error)
                    for path in MESSAGES_PATHS
                ),
                answer_route("/{token}/mcp", self._answer_tools, answer_error),
                answer_route("/{token}/v1/models", self._models, answer_error, ("GET",)),
                answer_route("/{token}/v1/models/{model:path}", self._model, answer_error, ("GET",)),
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

    def add_tools(self, endpoint: ToolEndpoint) -> str:
        """Serve the tools of an episode; returns the token."""
        token = secrets.token_urlsafe(24)
        self._tools[token] = endpoint
        return token

    def remove_tools(self, token: str) -> None:
        """Stop serving them."""
        del self._tools[token]

    def _route(self, path: str, parse: Parse, answer_error: Callable[[Exception], Response] = answer_error) -> Route:
        return answer_route(f"/{{token}}/v1/{path}", functools.partial(self._answer, parse=parse), answer_error)

    async def chat_completion(self, token: str, body: object) -> dict[str, Any]:
        """The answer of `chat/completions` to `body`, without HTTP. `body` holds nothing but JSON's types, and asks for
        no stream.

        Raises:
            HttpError: the error that HTTP would have answered with.
        """
        endpoint = self._endpoint(token)
        try:
            parsed = parse_chat_completion(body)
            answers = await _answers(token, endpoint, parsed, endpoint.choices(parsed.request, parsed.n))
            return parsed.body(answers, endpoint.chat_format)
        except HttpError:
            raise
        except Exception as error:
            raise to_http_error(error) from error

    def runs_here(self, token: str) -> bool:
        """True if the episode is on the event loop of the caller, and if it is over."""
        endpoint = self._endpoints.get(token)
        return endpoint is None or endpoint.loop is asyncio.get_running_loop()

    def _endpoint(self, token: str) -> Endpoint:
        endpoint = self._endpoints.get(token)
        if endpoint is None:
            raise episode_over()
        return endpoint

    async def _answer(self, request: Request, *, parse: Parse) -> Response:
        token = request.path_params["token"]
        endpoint = self._endpoint(token)
        parsed = parse(await _read_body(request, endpoint), endpoint.stored)
        asked = replace(parsed.request, retry=True) if is_repeated(request) else parsed.request
        work = _watch(request, endpoint, endpoint.choices(asked, parsed.n))
        answers = await _answers(token, endpoint, parsed, work)
        return write_answers(parsed, answers, endpoint.chat_format)

    async def _count(self, request: Request) -> Response:
        endpoint = self._endpoint(request.path_params["token"])
        parsed = parse_count(await _read_body(request, endpoint))
        try:
            tokens = await _watch(request, endpoint, endpoint.count(parsed.request))
        except ClientDisconnect:
            raise
        except Exception as error:
            raise call_error(error, parsed.prompt_field) from error
        return json_response({"input_tokens": tokens})

    async def _answer_tools(self, request: Request) -> Response:
        tools = self._tools.get(request.path_params["token"])
        if tools is None:
            raise episode_over()
        return await tools.answer(request)

    async def _models(self, request: Request) -> Response:
        return list_models(self._endpoint(request.path_params["token"]).model)

    async def _model(self, request: Request) -> Response:
        return show_model(self._endpoint(request.path_params["token"]).model, request.path_params["model"])


@functools.cache
def openai_app() -> OpenAIApp:
    """The app of this process."""
    return OpenAIApp()


async def _read_body(request: Request, endpoint: Endpoint) -> object:
    try:
        body = await read_request(request, endpoint.context_length)
    except ContextOverflow as error:
        endpoint.failed(error)
        raise call_error(error, None) from None
    return parse_json(body)


def _watch(request: Request, endpoint: Endpoint, call: Coroutine[Any, Any, Result]) -> Awaitable[Result]:
    """The call, which ends when the client goes away."""
    if asyncio.get_running_loop() is endpoint.loop:  # called in the process: there is no connection to watch
        return call
    return unless_disconnected(request, endpoint.from_elsewhere(call), episode_over())


async def _answers(
    token: str, endpoint: Endpoint, parsed: ApiRequest, work: Awaitable[Sequence[ChatAnswer]]
) -> list[ChatAnswer]:
    """The answers that `work` gives, with ids that no other answer of any episode has. Raises HttpError."""
    for note in parsed.notes:
        endpoint.note(note)
    try:
        answers = await work
    except ClientDisconnect:
        raise
    except Exception as error:
        raise call_error(error, parsed.prompt_field) from error
    digest = hashlib.blake2b(token.encode(), digest_size=8).hexdigest()  # the token itself stays secret
    return [replace(answer, answer_id=f"{digest}_{answer.answer_id.rpartition('_')[2]}") for answer in answers]
