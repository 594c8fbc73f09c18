"""What the services that speak OpenAI's API have in common: routes, errors in its shape, clients that go away."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from astune.gateway.api_request import to_json
from astune.gateway.errors import ApiError

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
Headers = Mapping[str, str]
# OpenAI's clients repeat a failed request, unless told not to; a repeated call would be a second turn.
NO_RETRY = {"x-should-retry": "false"}


def api_route(
    path: str,
    answer: Callable[[Request], Coroutine[Any, Any, Response]],
    methods: tuple[str, ...] = ("POST",),
    error_headers: Callable[[ApiError], Headers] = lambda error: NO_RETRY,
) -> Route:
    """A route whose errors have OpenAI's shape, those that nobody expects too. A client that goes away gets nothing."""

    async def handle(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            response = await answer(request)
        except ClientDisconnect:
            return
        except ApiError as error:
            response = error_response(error, error_headers(error))
        except Exception as error:
            failed = unexpected(error)
            response = error_response(failed, error_headers(failed))
        await response(scope, receive, send)

    return Route(path, _Asgi(handle), methods=list(methods))


class _Asgi:
    """A callable that Starlette takes for an app of its own: functions it would wrap a second time."""

    def __init__(self, handle: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        self._handle = handle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._handle(scope, receive, send)


def unexpected(error: Exception) -> ApiError:
    """The answer to a request at which the endpoint itself failed, which is logged: for where it is handled."""
    logger.exception("the endpoint failed at a request")
    return ApiError(500, "internal_error", f"{type(error).__name__}: {error}")


def error_response(error: ApiError, headers: Headers = NO_RETRY) -> Response:
    return json_response(error.body(), error.status, headers)


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
    gone = asyncio.ensure_future(_disconnected(request))
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


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
