"""The parts of HTTP services that speak OpenAI's API: routes, bodies read up to a limit and as strict JSON, errors in
its shape, clients that go away."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from astune.errors import ContextOverflow
from astune.gateway.api_request import to_json
from astune.gateway.errors import ApiError
from astune.support.http.browser_requests import Refusal
from astune.support.strict_json import read_json

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
Headers = Mapping[str, str]
# OpenAI's clients repeat a failed request, unless told not to; a repeated call would be a second turn.
NO_RETRY = {"x-should-retry": "false"}

_LEAST_LIMIT = 4 * 2**20
_BYTES_PER_TOKEN = 64
"""A token of text has about four bytes, and JSON may write six for one. The rest is room for what no prompt has, such
as reasoning that the template drops."""
MOST_NESTED = 100
"""Lists and objects within each other. Templates and copies of a request go through them by recursion."""


def most_bytes(context_length: int) -> int:
    """The size above which a body is not read: its text does not fit a model with this context."""
    return _LEAST_LIMIT + _BYTES_PER_TOKEN * context_length


async def read_body(request: Request, context_length: int) -> bytes:
    """The body.

    Raises:
        ContextOverflow: it is larger than `most_bytes`. What its header says is believed, and not more is read of one
            that does not say.
        ClientDisconnect: the client went away.
    """
    limit = most_bytes(context_length)
    said = request.headers.get("content-length", "")
    if said.isdecimal() and (len(said) > 18 or int(said) > limit):
        raise _too_large(f"{said:.30} bytes, more", limit, context_length)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise _too_large("more bytes", limit, context_length)
    return bytes(body)


def _too_large(size: str, limit: int, context_length: int) -> ContextOverflow:
    return ContextOverflow(
        f"the request has {size} than the {limit} that are read ({_LEAST_LIMIT} and {_BYTES_PER_TOKEN} for each token "
        f"of the context). This model's maximum context length is {context_length} tokens: the prompt is too long. "
        "Please reduce the length of the messages."
    )


def from_json(body: bytes) -> object:
    """Read `body` as JSON by RFC 8259: no NaN, no name twice, text that UTF-8 can hold.

    Raises:
        ApiError: 400, it is none, or nested deeper than `MOST_NESTED`.
    """
    try:
        text = body.decode(json.detect_encoding(body))
        value = read_json(text)
        if b"\\u" in body:  # half of a surrogate pair can be written so, which no text can hold
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise ApiError(400, "invalid_json", f"the body is not JSON: {error}") from None
    if body.count(b"[") + body.count(b"{") > MOST_NESTED and _is_deep(value):
        raise ApiError(400, "invalid_json", f"the body is nested deeper than {MOST_NESTED} lists and objects")
    return value


def _is_deep(value: object) -> bool:
    level = [value]
    for _ in range(MOST_NESTED):
        nested = [item.values() if isinstance(item, dict) else item for item in level if isinstance(item, (dict, list))]
        level = [child for children in nested for child in children]
        if not level:
            return False
    return any(isinstance(item, (dict, list)) for item in level)


def api_route(
    path: str,
    answer: Callable[[Request], Coroutine[Any, Any, Response]],
    methods: tuple[str, ...] = ("POST",),
    answer_error: Callable[[ApiError], Response] | None = None,
) -> Route:
    """Make a route whose errors have OpenAI's shape, unexpected ones too. A client that goes away gets nothing."""
    told = answer_error or error_response

    async def handle(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            response = await answer(request)
        except ClientDisconnect:
            return
        except ApiError as error:
            response = told(error)
        except Exception as error:
            response = told(log_unexpected(error))
        await response(scope, receive, send)

    return Route(path, _Asgi(handle), methods=list(methods))


class _Asgi:
    """A callable that Starlette takes for an app. It would wrap a plain function a second time."""

    def __init__(self, handle: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        self._handle = handle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._handle(scope, receive, send)


def log_unexpected(error: Exception) -> ApiError:
    """Log an error of the endpoint itself and turn it into an answer. To be called while it is handled."""
    logger.exception("the endpoint failed at a request")
    return ApiError(500, "internal_error", f"{type(error).__name__}: {error}")


def error_response(error: ApiError, headers: Headers = NO_RETRY) -> Response:
    return json_response(error.body(), error.status, headers)


def refuse(refusal: Refusal) -> ASGIApp:
    """The answer to a request that is not for programs."""
    return error_response(ApiError(*refusal))


def unknown_url(request: Request, error: Exception) -> Response:
    """Starlette's handler for paths and methods that are not there; the first part of the path is kept to ourselves."""
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path.split('/', 2)[-1]}: {error.detail}"
    return error_response(ApiError(error.status_code, "unknown_url", message))


def json_response(body: object, status: int = 200, headers: Headers | None = None) -> Response:
    return Response(to_json(body), status, headers, "application/json")


def model_object(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "astune"}


async def unless_disconnected(request: Request, work: asyncio.Future[Result], over: ApiError) -> Result:
    """The result, unless the client goes away first: then the work is cancelled.

    Raises:
        ClientDisconnect: nobody waits for the answer any more.
        ApiError: `over`, if the work was cancelled first.
    """
    gone = asyncio.ensure_future(_wait_for_disconnect(request))
    try:
        await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
        work.cancel()
    if work.cancelled():
        raise over
    if not work.done():
        raise ClientDisconnect
    return work.result()


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
